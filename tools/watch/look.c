/* SPDX-License-Identifier: MIT */
/* One look: finds this host's processes with libshunt.so, and asks each. */
#include "tools/common/libc.h"
#include "base/dump_address.h"
#include "tools/watch/watch.h"

static bool descends(pid_t pid, pid_t ancestor)
{
	struct ask_process p;

	for (int depth = 0; pid > 1 && pid != ancestor && depth < 4096; depth++)
		pid = ask_process_read(pid, &p) ? 0 : p.parent;
	return pid == ancestor;
}

int look_descendants(pid_t ancestor, pid_t **pids_p)
{
	DIR *dir = opendir("/proc");
	struct dirent *entry;
	pid_t *pids = NULL;
	int n = 0;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir))) {
		pid_t pid = (pid_t)atoi(entry->d_name), *more;

		if (pid <= 1 || pid == getpid() || !descends(pid, ancestor))
			continue;
		more = realloc(pids, ((size_t)n + 1) * sizeof(*pids));
		if (!more)
			break;
		pids = more;
		pids[n++] = pid;
	}
	closedir(dir);
	*pids_p = pids;
	return n;
}

int look_take(
    struct dumps *d, struct findings *f, pid_t ancestor, const char *request, const char *dir, bool everywhere)
{
	struct ask_process *all;
	size_t n, kept = 0;
	int err = ask_find(everywhere, &all, &n);

	if (err)
		return err;
	for (size_t i = 0; i < n; i++)
		if (!ancestor ||
		    (all[i].pid_namespace == shunt_dump_namespace("self") && descends(all[i].ns_pid, ancestor)))
			ask_put_first(all, i, &kept);
	ask_all(all, kept, request);
	for (size_t i = 0; i < kept && !err; i++)
		if (!all[i].text)
			doctor_silence_explain(f, &all[i]);
		else if (doctor_answer_add(d, &all[i], dir, "hang") == -ENOMEM)
			err = -ENOMEM;
	ask_free(all, n);
	return err;
}

void look_cause(const struct dumps *d, const char *id, int nranks, char *text, size_t bytes)
{
	struct findings f = { 0 };
	char begin[128];
	int n = snprintf(begin, sizeof(begin), "communicator %s of %d: ", id, nranks);

	*text = '\0';
	doctor_hangs(&f, d);
	for (size_t i = 0; i < f.n && !*text; i++)
		if (f.rows[i].level >= FINDING_WARN && n > 0 && !strncmp(f.rows[i].text, begin, (size_t)n))
			snprintf(text, bytes, "%s", f.rows[i].text + n);
	findings_finish(&f);
}
