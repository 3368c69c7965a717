/* SPDX-License-Identifier: MIT */
#include "tests/support/until.h"
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "base/dump_address.h"
#include "tests/support/clock.h"
#include "tests/support/pause.h"

enum { LOOK_US = 1000, LOOKS = 10 };

static bool gave_up(double end, const char *format, long number, const char *text)
{
	if (now() < end)
		return false;
	fprintf(stderr, "after %d s: ", AT_ONCE_S);
	fprintf(stderr, format, number, text);
	fputc('\n', stderr);
	return true;
}

/* The caller frees the text; NULL: nobody answers. */
static char *dump_of(pid_t pid)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	socklen_t bytes = shunt_dump_address(&address, geteuid(), shunt_dump_namespace("self"), pid);
	size_t have = 0, room = 1 << 20;
	char *text = malloc(room);
	ssize_t n;

	if (fd < 0 || !text || connect(fd, (struct sockaddr *)&address, bytes)) {
		free(text);
		text = NULL;
	}
	while (text && have + 1 < room && (n = recv(fd, text + have, room - have - 1, 0)) > 0)
		have += (size_t)n;
	if (text)
		text[have] = '\0';
	if (fd >= 0)
		close(fd);
	return text;
}

bool until_dump_has(pid_t pid, const char *wanted)
{
	for (double end = now() + AT_ONCE_S;; pause_us(PAUSE_POLL, LOOK_US)) {
		char *text = dump_of(pid);
		bool has = text && strstr(text, wanted);

		if (!has && gave_up(end, "the dump of process %ld has no %s", pid, wanted)) {
			fprintf(stderr, "%s\n", text ? text : "(no dump)");
			free(text);
			return false;
		}
		free(text);
		if (has)
			return true;
	}
}

bool until_begun(pid_t pid, unsigned seq)
{
	char text[32];

	snprintf(text, sizeof(text), "\"last\": %u,", seq);
	return until_dump_has(pid, text);
}

/* Of a process or thread; '\0': there is none. */
static char state_of(const char *path)
{
	char line[512] = "", *name_end;
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(line, 1, sizeof(line) - 1, f) : 0;

	if (f)
		fclose(f);
	line[n] = '\0';
	name_end = strrchr(line, ')');
	return name_end && name_end[1] ? name_end[2] : '\0';
}

/* How many threads the process has, and how many of them, without `but`, are in one of these states. */
static int threads_in(pid_t pid, const char *states, pid_t but, int *all_p)
{
	char path[300];
	struct dirent *entry;
	int n = 0, all = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		char state;

		if (*entry->d_name == '.' || atoi(entry->d_name) == but)
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, entry->d_name);
		state = state_of(path);
		all += state != '\0';
		n += state && strchr(states, state);
	}
	if (dir)
		closedir(dir);
	*all_p = all;
	return n;
}

/* All its threads are in one of these states, in so many looks in a row. gone: a process that is gone counts, too. */
static bool until_threads_in(pid_t pid, const char *states, pid_t but, int looks, bool gone, const char *name)
{
	double end = now() + AT_ONCE_S;
	int all;

	for (int left = looks; left; pause_us(PAUSE_POLL, LOOK_US)) {
		bool so = threads_in(pid, states, but, &all) == all && (all || gone);

		left = so ? left - 1 : looks;
		if (!so && gave_up(end, "process %ld %s", pid, name))
			return false;
	}
	return true;
}

bool until_process_stops(pid_t pid)
{
	return until_threads_in(pid, "Tt", 0, 1, false, "has not stopped");
}

bool until_process_ends(pid_t pid)
{
	return until_threads_in(pid, "ZX", 0, 1, true, "has not ended");
}

bool until_all_threads_wait(void)
{
	return until_threads_in(getpid(), "S", gettid(), LOOKS, true, "has threads that run");
}

int until_threads_now(void)
{
	int all;

	threads_in(getpid(), "", 0, &all);
	return all;
}

bool until_threads_are(int most)
{
	for (double end = now() + AT_ONCE_S; until_threads_now() > most; pause_us(PAUSE_POLL, LOOK_US))
		if (gave_up(end, "more than %ld threads%s", most, ""))
			return false;
	return true;
}

bool until_counted(const atomic_int *count, int least, const char *name)
{
	for (double end = now() + AT_ONCE_S; atomic_load(count) < least; pause_us(PAUSE_POLL, 200))
		if (gave_up(end, "fewer than %ld %s", least, name))
			return false;
	return true;
}
