"""A real PostgreSQL server on localhost, from the binaries of Debian's package, in a temporary folder."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path

import psutil
import pytest

PASSWORD = "MARKED-password-of-the-test"
# the server refuses to run as root
USER = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


class Server:
    """A server that can be killed and started again. `url(database)` has no password: tests set PGPASSWORD."""

    def __init__(self, programs, folder):
        self.programs, self.folder, self.databases = Path(programs), folder, 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "password").write_text(PASSWORD)
        login = "-U", "owner", "-A", "scram-sha-256", "--pwfile", folder / "password"
        self.run("initdb", "--no-sync", "-D", folder / "data", *login)

    def run(self, program, *words):
        command = [self.programs / program, *words]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, timeout=60, **USER)

    def start(self, fsync="off"):
        """Start the server. A kill of all its processes loses nothing without fsync, which only a power cut needs."""
        settings = f"-c listen_addresses=127.0.0.1 -c fsync={fsync} -p {self.port} -k {self.folder}"
        log = self.folder / "log"
        self.run("pg_ctl", "start", "-w", "-t", "60", "-D", self.folder / "data", "-l", log, "-o", settings)

    def kill(self):
        """Kill the server and the processes of its connections, together."""
        server = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=60)

    def url(self, database="postgres"):
        return f"postgresql://owner@127.0.0.1:{self.port}/{database}"

    def connect(self, database="postgres"):
        import psycopg

        return psycopg.connect(self.url(database), password=PASSWORD, autocommit=True)

    def new_database(self):
        self.databases += 1
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE test{self.databases}")
        return f"test{self.databases}"


@contextmanager
def serving_postgresql():
    """Yield a running server; skip the test where none can be had."""
    pytest.importorskip("psycopg", reason="needs the extra postgresql: pip install 'psycopg[binary]'")
    if not (programs := sorted(glob("/usr/lib/postgresql/*/bin"))):
        pytest.skip("needs a PostgreSQL server: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="arenarl-postgresql-"))
    try:
        if USER:
            shutil.chown(folder, USER["user"], USER["group"])
        server = Server(programs[-1], folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
