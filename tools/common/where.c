/* SPDX-License-Identifier: MIT */
#include "tools/common/where.h"
#include <sched.h>
#include <sys/utsname.h>
#include "tools/common/libc.h"
#include "base/host.h"
#include "tools/common/tool.h"

void tool_driver_version(char *text, size_t bytes)
{
	FILE *v = fopen("/proc/driver/nvidia/version", "re");
	char line[512];
	const char *at;

	*text = '\0';
	if (v && fgets(line, sizeof(line), v))
		for (at = line; *at; at++) /* the first word that begins with a digit */
			if ((at == line || at[-1] == ' ') && *at >= '0' && *at <= '9') {
				snprintf(text, bytes, "%.*s", (int)strcspn(at, " \n"), at);
				break;
			}
	if (v)
		fclose(v);
}

json_t *tool_json_text(const char *text)
{
	return text && *text ? json_string_nocheck(text) : json_null();
}

/* "0.2.0 (12ef02d, 2026-11-26; gcc 12.2.0, release; ...)" in three: version, commit, the rest. */
static void build_add(json_t *root, const char *build)
{
	size_t version = strcspn(build, " "), commit;
	const char *inside = strchr(build, '('), *rest = strchr(build, ';');

	json_object_set_new(root, "shunt", json_stringn(build, version));
	commit = inside ? strcspn(inside + 1, ",;)") : 0;
	json_object_set_new(root, "commit",
	    commit && strncmp(inside + 1, "unknown", commit) ? json_stringn(inside + 1, commit) : json_null());
	json_object_set_new(root, "build", rest ? json_stringn(rest + 2, strcspn(rest + 2, ")")) : json_null());
}

static json_t *devices_json(const struct tool_lib *lib)
{
	json_t *list = json_array();
	int n = 0;

	if (!lib || lib->device_count(&n)) {
		json_decref(list);
		return json_null();
	}
	for (int i = 0; i < n; i++) {
		char name[128] = "?";

		lib->device_name(i, name, sizeof(name));
		json_array_append_new(list, json_string_nocheck(name));
	}
	return list;
}

json_t *tool_where_json(const char *build, const struct tool_lib *lib, bool with_host)
{
	json_t *root = json_object();
	time_t now = time(NULL);
	struct utsname machine;
	char text[80] = "";
	cpu_set_t cpus;
	struct tm day;

	if (!root)
		return NULL;
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &day));
	json_object_set_new(root, "time", json_string(text));
	*text = '\0';
	if (with_host)
		shunt_host_name(text, sizeof(text));
	json_object_set_new(root, "host", tool_json_text(text));
	build_add(root, build);
	tool_driver_version(text, sizeof(text));
	json_object_set_new(root, "driver", tool_json_text(text));
	*text = '\0';
	if (!uname(&machine))
		snprintf(text, sizeof(text), "%.15s %.60s", machine.sysname, machine.release);
	json_object_set_new(root, "kernel", tool_json_text(text));
	json_object_set_new(
	    root, "cpus", sched_getaffinity(0, sizeof(cpus), &cpus) ? json_null() : json_integer(CPU_COUNT(&cpus)));
	json_object_set_new(root, "devices", devices_json(lib));
	return root;
}

void tool_where_show(json_t *where, char *text, size_t bytes)
{
	static const struct {
		const char *key, *before;
	} parts[] = { { "time", "" }, { "host", ", " }, { "commit", ", commit " }, { "driver", ", driver " },
		{ "kernel", ", " } };
	json_int_t cpus = json_integer_value(json_object_get(where, "cpus"));
	size_t n = 0;

	*text = '\0';
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && n < bytes; i++) {
		const char *value = json_string_value(json_object_get(where, parts[i].key));

		if (value)
			n += (size_t)snprintf(text + n, bytes - n, "%s%.80s", parts[i].before, value);
	}
	if (cpus && n < bytes)
		snprintf(text + n, bytes - n, ", %lld CPUs", (long long)cpus);
}
