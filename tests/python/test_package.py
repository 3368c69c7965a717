# SPDX-License-Identifier: MIT
"""The package itself: what importing it does, and where it finds the library."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import libshunt


class Package(unittest.TestCase):
    def test_import_loads_nothing(self) -> None:
        probe = "import libshunt; print('libshunt.so' in open('/proc/self/maps').read())"
        out = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout
        self.assertEqual(out, "False\n")

    def test_library_path(self) -> None:
        self.assertEqual(libshunt.library_path(), os.path.realpath(os.environ["SHUNT_LIB"]))

    def test_wrong_library_path(self) -> None:
        probe = "import libshunt; libshunt.library_path()"
        env = dict(os.environ, SHUNT_LIB="/no/such/file")
        run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=env)
        self.assertIn('SHUNT_LIB is "/no/such/file", which is not a file', run.stderr)

    def test_command_of_the_librarys_installation(self) -> None:
        """Whatever its folder of libraries is called, and by a link; not a script, which may be this package's."""
        built = os.path.join(os.environ["TEST_BUILD"], "tools", "shunt")
        self.assertEqual(libshunt.command_path(), built)
        for libdir in "lib", "lib64", "lib/x86_64-linux-gnu", "lib/shunt/own":
            with self.subTest(libdir), tempfile.TemporaryDirectory() as made:
                prefix = os.path.realpath(made)
                for folder in libdir, "bin", "tools":
                    os.makedirs(os.path.join(prefix, folder))
                library = os.path.join(prefix, libdir, "libshunt.so")
                os.symlink(os.environ["SHUNT_LIB"], library)  # only to be there
                with mock.patch.dict(os.environ, SHUNT_LIB=library), mock.patch("os.path.realpath", os.path.abspath):
                    script = os.path.join(prefix, "tools", "shunt")
                    with open(script, "w", encoding="utf-8") as file:
                        file.write("#!/bin/sh\n")
                    os.chmod(script, 0o755)
                    with self.assertRaisesRegex(libshunt.Error, "bin/shunt is not there: .*set SHUNT_LIB to"):
                        libshunt.command_path(search=False)
                    shutil.copy(built, os.path.join(prefix, "bin", "shunt"))
                    self.assertEqual(libshunt.command_path(search=False), os.path.join(prefix, "bin", "shunt"))


if __name__ == "__main__":
    unittest.main()
