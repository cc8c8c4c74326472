"""Which files a gateway's page is made of, beside those that it shares with a server's."""

from pathlib import Path

from penstock.server.page.files import page_files

_ADMINISTRATION = (
    "admin.css",
    "admin.js",
    "admin_api.js",
    "audit.js",
    "columns.js",
    "dialogs.js",
    "keys.js",
    "limits.js",
    "pages.js",
    "settings.js",
    "spending.js",
    "tenants.js",
)
GATEWAY_PAGE = page_files(Path(__file__).with_name("static"), ("fleet.js", "gateway.js", "ways.js", *_ADMINISTRATION))
