"""One HTML file that holds its own style and scripts: the browser fetches nothing, and runs no other script."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from rrbench.report.html import Safe, element


def document(title: str, header: Safe, main: Safe, files: Sequence[tuple[str, str]]) -> str:
    """Return the whole file; `files` are (package, name) of the style sheets and scripts that ship with rrbench."""
    texts = [(name, (resources.files(package) / name).read_text(encoding="utf-8")) for package, name in files]
    style = "".join(text for name, text in texts if name.endswith(".css"))
    scripts = [text for name, text in texts if name.endswith(".js")]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; form-action 'none'"
    written = "\n".join(f"<script>{text}</script>" for text in scripts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"{element('title', title)}\n<style>{style}</style>\n</head>\n"
        f"<body>\n{header}\n{element('main', main)}\n{written}\n</body>\n</html>\n"
    )
