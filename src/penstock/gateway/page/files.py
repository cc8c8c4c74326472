"""Which files a gateway's page is made of, beside those that it shares with a server's."""

from pathlib import Path

from penstock.server.page.files import page_files

GATEWAY_PAGE = page_files(Path(__file__).with_name("static"), ("fleet.js", "gateway.js", "ways.js"))
