"""Kernels in C++ (sources in `native/`), with what Python needs to call them."""
