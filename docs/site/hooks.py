"""mkdocs hooks: the pages of research/ are part of the site; links are those of the repository's folders.

A link named by its page gets the page's title; one to what is not on the site leads to the repository, if known.
Links of notebooks, which mkdocs-jupyter leaves as they are, lead to the pages of the site; a dead one is a warning.
Formulas become MathML, which browsers draw without a script.
"""

import logging
import re
from html import unescape
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from latex2mathml.converter import convert
from mkdocs.structure.files import File

_LINK = re.compile(r"\[([^]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_HREF = re.compile(r'href="(?![a-z]+:|#|/)([^"#]+\.(?:md|ipynb))(#[^"]*)?"')
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([([])(.*?)\\[])]</\1>', re.DOTALL)
_FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_RESEARCH = ("*.md", "*/*.md", "*/*.png", "*/*.csv")
"""What the site has of research/."""


def on_files(files, config):
    """The site's files, with those of research/."""
    root = Path(config.docs_dir).parent
    for path in sorted(path for pattern in _RESEARCH for path in (root / "research").glob(pattern)):
        uri = path.relative_to(root).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """The page's text with its links replaced."""
    here = page.file.src_uri
    folder = dirname(here if here.startswith("research/") else join("docs", here))
    base = f"{config.repo_url.rstrip('/')}/blob/main/" if config.repo_url else ""

    def replaced(link):
        text, target, anchor = link[1], normpath(join(folder, link[2])), link[3] or ""
        file = files.get_file_from_path(target.removeprefix("docs/"))
        if file is None:
            return f"[{text}]({base}{target}{anchor})" if base else f"{text} (`{target}`)"
        if text == link[2] and text.endswith(".md"):
            text = Path(file.abs_src_path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{text}]({relpath(file.src_uri, dirname(here) or '.')}{anchor})"

    parts = _FENCED.split(markdown)  # code has brackets that are no links
    return "".join(part if number % 2 else _LINK.sub(replaced, part) for number, part in enumerate(parts))


def on_page_content(html, page, config, files):
    """The page's HTML with its formulas as MathML; of a notebook also with its links replaced."""
    here = page.file.src_uri

    def replaced(link):
        target = normpath(join(dirname(here), link[1]))
        if target == here:  # the notebook's own file, to download
            return link[0]
        file = files.get_file_from_path(target)
        if file is None:
            logging.getLogger("mkdocs.hooks").warning("%s: the link to %s leads nowhere", here, link[1])
            return link[0]
        return f'href="{file.url_relative_to(page.file)}{link[2] or ""}"'

    if here.endswith(".ipynb"):
        html = _HREF.sub(replaced, html)

    def drawn(formula):
        if formula[2] == "(":
            return convert(unescape(formula[3]))
        return f'<div class="formula">{convert(unescape(formula[3]), display="block")}</div>'

    return _FORMULA.sub(drawn, html)
