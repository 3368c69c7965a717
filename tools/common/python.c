/* SPDX-License-Identifier: MIT */
/* Finds the Python package libshunt. */
#include "tools/common/libc.h"
#include "base/place.h"
#include "tools/common/tool.h"

static bool is_package(const char *dir)
{
	char file[PATH_MAX];
	struct stat st;
	int n = snprintf(file, sizeof(file), "%s/compat/mscclpp/__init__.py", dir);

	return n > 0 && n < PATH_MAX && !stat(file, &st) && S_ISREG(st.st_mode);
}

int tool_python_package(char dir[PATH_MAX])
{
	static const char *const ask[] = { "python3", "-c",
		"import libshunt, os; print(os.path.dirname(os.path.abspath(libshunt.__file__)))", NULL };
	bool found = false;
	FILE *out;
	pid_t pid;

	if (shunt_place_find(SHUNT_PLACE_PYTHON, NULL, dir))
		return 0;
	out = tool_output_of(ask, &pid);
	if (out) {
		found = fgets(dir, PATH_MAX, out);
		fclose(out);
		waitpid(pid, NULL, 0);
	}
	if (found) {
		dir[strcspn(dir, "\n")] = 0;
		if (is_package(dir))
			return 0;
	}
	tool_error(
	    "python3 has no package libshunt: install the wheel that tools/wheel.sh makes, or put the folder python of "
	    "the sources into PYTHONPATH");
	return -ENOENT;
}

int tool_env_prepend(const char *name, const char *value)
{
	const char *old = getenv(name);
	char *joined;
	int err;

	if (!old || !*old)
		return setenv(name, value, 1) ? -ENOMEM : 0;
	if (asprintf(&joined, "%s:%s", value, old) < 0)
		return -ENOMEM;
	err = setenv(name, joined, 1) ? -ENOMEM : 0;
	free(joined);
	return err;
}
