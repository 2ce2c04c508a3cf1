from __future__ import annotations

import base64
import hmac
import os
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.nodes._known_hosts import KnownHosts, fingerprint


def make_key():
    public = Ed25519PrivateKey.generate().public_key()
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line.decode()


KEY = make_key()
BLOB = base64.b64decode(KEY.split()[1])


def hashed(name, salt=b"s" * 20):
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def load(tmp_path, *lines):
    file = tmp_path / "known_hosts"
    file.write_text("\n".join(lines))
    return KnownHosts.load([file])


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("host", "host", True),
        ("HOST", "host", True),
        ("host", "hosts", False),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("10.0.0.?", "10.0.0.7", True),
        ("10.0.0.?", "10.0.0.77", False),
        ("[host]:22*", "[host]:2222", True),
        ("[host]:2222", "h", False),
        ("[ho]st", "host", False),
        ("a,host,b", "host", True),
        ("*,!host", "host", False),
        ("!host,*", "host", False),
        ("!other", "host", False),
        (hashed("host"), "host", True),
        (hashed("host"), "other", False),
        ("|1|broken", "host", False),
        ("|1|!!|!!", "host", False),
        ("|2|c2FsdA==|c2FsdA==", "host", False),
    ],
)
def test_names(tmp_path, pattern, name, expected):
    assert bool(load(tmp_path, f"{pattern} {KEY}").of([name])) is expected


names = st.text(alphabet="ab.", min_size=1, max_size=4)
patterns = st.text(alphabet="ab.*?", min_size=1, max_size=4)
lists = st.lists(st.tuples(st.booleans(), patterns), min_size=1, max_size=3)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen as the judge")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=names, entries=lists, port=st.sampled_from([None, 2222]), hash_it=st.booleans())
def test_names_match_as_ssh_keygen_matches_them(tmp_path, name, entries, port, hash_it):
    def shown(text):
        return f"[{text}]:{port}" if port else text

    asked = shown(name)
    field = ",".join(("!" if no else "") + shown(pattern) for no, pattern in entries)
    if hash_it:
        field = hashed(shown(entries[0][1]))
    file = tmp_path / "known_hosts"
    file.write_text(f"{field} {KEY}\n")
    oracle = subprocess.run(
        ["ssh-keygen", "-F", asked, "-f", str(file)], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert bool(KnownHosts.load([file]).of([asked])) == (oracle.returncode == 0)


@settings(max_examples=300)
@given(data=st.binary(max_size=300))
def test_no_file_content_breaks_the_loader(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}"
    file.write_bytes(data)
    known = KnownHosts.load([file])
    known.of(["host"])
    known.authorities(["host"])
    known.revoked(["host"], b"")


@given(
    before=st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])), max_size=5),
    separator=st.sampled_from([" ", "\t", "  "]),
)
def test_a_good_line_survives_whatever_surrounds_it(tmp_path_factory, before, separator):
    file = tmp_path_factory.getbasetemp() / f"around-{os.getpid()}"
    line = separator.join(["the-host", *KEY.split()])
    file.write_text("\n".join([*before, line]), encoding="utf-8")
    found = KnownHosts.load([file]).of(["the-host"])
    assert [key.blob for key in found if key.where.endswith(f":{len(before) + 1}")] == [BLOB]


def test_comments_blank_lines_and_trailing_words(tmp_path):
    known = load(tmp_path, "# host ssh-rsa AAAA", "", f"  host {KEY} me@home  more words")
    assert [key.where for key in known.of(["host"])] == [f"{tmp_path}/known_hosts:3"]
    assert known.problems == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("host ssh-ed25519", "fewer than the three fields"),
        ("@revoked", "fewer than the three fields"),
        ("@sometimes host ssh-ed25519 AAAA", "unknown marker @sometimes"),
        ("host ssh-ed25519 not/base64!", "is not base64"),
        (f"host ssh-rsa {KEY.split()[1]}", "not of the type ssh-rsa"),
    ],
    ids=["two-fields", "marker-alone", "marker", "base64", "type"],  # a new key each time must not be part of one
)
def test_a_line_without_sense_is_a_problem_with_its_place(tmp_path, line, problem):
    known = load(tmp_path, f"good {KEY}", line)
    assert len(known.problems) == 1
    assert known.problems[0].startswith(f"{tmp_path}/known_hosts:2: ")
    assert problem in known.problems[0]
    assert known.of(["good"])


def test_markers_are_kept_apart(tmp_path):
    other = make_key()
    known = load(tmp_path, f"@cert-authority * {other}", f"@revoked bad {KEY}", f"host {KEY}")
    assert [key.marker for key in known.of(["host"])] == [""]
    assert [key.key_type for key in known.authorities(["anything"])] == ["ssh-ed25519"]
    assert known.revoked(["host"], BLOB) is None
    revoked = known.revoked(["bad"], BLOB)
    assert revoked is not None
    assert revoked.where == f"{tmp_path}/known_hosts:2"


def test_the_more_specific_name_wins(tmp_path):
    other = make_key()
    known = load(tmp_path, f"host {KEY}", f"[host]:2222 {other}")
    assert [key.blob for key in known.of(["[host]:2222", "host"])] == [base64.b64decode(other.split()[1])]
    assert [key.blob for key in known.of(["[host]:2223", "host"])] == [BLOB]


def test_missing_and_unreadable_files(tmp_path):
    known = KnownHosts.load([tmp_path / "none", tmp_path])
    assert known.keys == []
    assert known.problems == [f"{tmp_path}: Is a directory"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen as the judge")
def test_fingerprints_are_those_of_ssh_keygen(tmp_path):
    (tmp_path / "key.pub").write_text(KEY + "\n")
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True
    )
    assert fingerprint(BLOB) in shown.stdout.split()
