# SPDX-License-Identifier: MIT
"""The package itself: what importing it does, and where it finds the library."""

import os
import subprocess
import sys
import unittest

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


if __name__ == "__main__":
    unittest.main()
