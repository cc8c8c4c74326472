"""Translations in the form of LibreTranslate's API."""
