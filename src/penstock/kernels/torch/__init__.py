"""Kernels in torch: what a CPU runs where the native kernels cannot."""
