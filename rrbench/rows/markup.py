"""Tables in LaTeX (booktabs) and HTML. Imports neither torch nor pandas."""

import html
import re
from collections.abc import Sequence

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "*": r"$^{*}$",
    "\u00b1": r"$\pm$",
}
STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5em; color: #111; background: #fff; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 0 0 .6em; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3em 0; }
th, td { padding: .2em .7em; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid #111; vertical-align: bottom; }
td { border-bottom: 1px solid #ddd; }
.name { text-align: left; }
small { color: #555; }
p { margin: .2em 0; max-width: 70em; }
"""


def escape_latex(text: str) -> str:
    """Write any text so that LaTeX prints it; characters beyond its default fonts become question marks."""
    shown = "".join(_LATEX.get(each, each if each.isascii() else "?") for each in text)
    # \textquotedbl needs a font encoding other than the default.
    return shown.replace(r"\textquotedbl{}", "''")


def escape_html(text: str) -> str:
    """Write any text so that a browser shows it."""
    return html.escape(text, quote=True)


def stacked_latex(lines: Sequence[str]) -> str:
    """Put pieces of LaTeX one below the other in one field."""
    return lines[0] if len(lines) == 1 else r"\shortstack{" + r"\\".join(lines) + "}"


def latex_table(
    header: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    names: int,
    caption: str = "",
    notes: Sequence[str] = (),
    label: str = "",
) -> str:
    """Lay out fields that are LaTeX already; the first `names` columns are left-aligned. Needs only booktabs."""
    columns = "l" * names + "r" * (len(header) - names)
    # LaTeX would read a bracket at the start of a line as an argument of the line break before it.
    guarded = [[re.sub(r"^\[", "{[}", field) for field in line] for line in cells]
    body = [r" & ".join(line) + r" \\" for line in guarded]
    parts = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}[tbp]",
        r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
        *([rf"\caption{{{caption}}}"] if caption else []),
        *([rf"\label{{{label}}}"] if label else []),
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        r" & ".join(header) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\raggedright {note}" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(parts)


def html_table(
    header: Sequence[str], cells: Sequence[Sequence[str]], *, names: int, caption: str = "", notes: Sequence[str] = ()
) -> str:
    """Lay out fields that are HTML already; the first `names` columns are left-aligned."""

    def field(tag: str, index: int, text: str) -> str:
        return f'<{tag} class="name">{text}</{tag}>' if index < names else f"<{tag}>{text}</{tag}>"

    def line(tag: str, fields: Sequence[str]) -> str:
        return "<tr>" + "".join(field(tag, index, text) for index, text in enumerate(fields)) + "</tr>"

    head = f"<caption>{caption}</caption>\n" if caption else ""
    body = "\n".join(line("td", fields) for fields in cells)
    table = f"<table>\n{head}<thead>{line('th', header)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return "\n".join([f'<div class="wide">\n{table}\n</div>', *(f"<p>{note}</p>" for note in notes)])


def html_page(title: str, body: str) -> str:
    """Wrap a body into a page that needs no other file."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape_html(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>"
    )
