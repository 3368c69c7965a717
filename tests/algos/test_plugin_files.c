/* SPDX-License-Identifier: MIT */
/*
 * test_plugin_files DEFECTS.so: files of plug-ins are for processes with their user's own rights. A process reads
 * SHUNT_PLUGINS once, so each case has a process of its own.
 */
#include "tests/support/unit.h"
#include "algos/plugins.h"
#include "tests/support/setuid.h"

static const char *defects;

/* What a process with SHUNT_PLUGINS=path has of its file: 0, all; 1, nothing, and it is told why; 2: neither. */
static int look(const char *path)
{
	char why[512] = "";
	bool is_there;
	int err;

	shunt_plugin_files_load();
	is_there = shunt_plugin_row(SHUNT_ALLREDUCE, "sound") != NULL;
	err = shunt_plugin_load_file(path, why, sizeof(why));
	if (is_there)
		return err == -EEXIST ? 0 : 2;
	return err == -EPERM && strstr(why, path) && strstr(why, "with another user's rights") ? 1 : 2;
}

TEST(test_files_are_not_for_setuid_programs)
{
	char dir[] = "/tmp/shunt-plugin-files-XXXXXX", variables[PATH_MAX + 32], arguments[PATH_MAX + 32], command[64];
	int status, plain;

	if (geteuid())
		skip(); /* to give a file to another user */
	assert_non_null(mkdtemp(dir));
	snprintf(variables, sizeof(variables), "SHUNT_PLUGINS=%s", defects);
	snprintf(arguments, sizeof(arguments), "look %s", defects);
	status = setuid_run(dir, variables, arguments);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
	if (status == SETUID_UNKNOWN)
		skip();
	assert_int_equal(status, 1);
	/* Another program has them. */
	assert_int_equal(setenv("SHUNT_PLUGINS", defects, 1), 0);
	plain = look(defects);
	assert_int_equal(plain, 0);
}

int main(int argc, char **argv)
{
	if (argc == 3) /* no leaks are looked for: that may not trace such a program */
		_exit(getauxval(AT_SECURE) ? look(argv[2]) : SETUID_UNKNOWN);
	if (argc != 2)
		return 2;
	defects = argv[1];
	return tests_run(NULL, NULL);
}
