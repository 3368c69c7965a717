/* SPDX-License-Identifier: MIT */
/* Where dumps go: to a file, on an error or a signal, and to a client of the socket. */
#include "tests/comm/recorder_fakes.h"
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "base/dump_address.h"
#include "comm/observe/dump.h"
#include "tests/support/pause.h"
#include "tests/support/until.h"

static char dump_dir[] = "/tmp/shunt-test-dump-XXXXXX";
static volatile sig_atomic_t earlier_handler_ran;

static char intruder[256]; /* a file that somebody else makes while a dump is being written */

static int intruding_copy(int device, void *dst, const void *src, size_t bytes)
{
	int fd = *intruder ? open(intruder, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;

	if (fd >= 0 && write(fd, "{}", 2) == 2)
		close(fd);
	return fake_copy(device, dst, src, bytes);
}

static const struct shunt_gpu_ops intruding_gpu = { .device_info = fake_info, .copy = intruding_copy };

/* ---- where it goes */

static int count_files(char *last, size_t bytes)
{
	DIR *dir = opendir(dump_dir);
	struct dirent *e;
	int n = 0;

	while (dir && (e = readdir(dir)))
		if (*e->d_name != '.') { /* nor those that are not complete */
			n++;
			if (last)
				snprintf(last, bytes, "%s/%s", dump_dir, e->d_name);
		}
	if (dir)
		closedir(dir);
	return n;
}

TEST(test_file_is_private_and_complete)
{
	char path[256], again[256];
	struct stat st;
	json_t *dump;
	int before = count_files(NULL, 0);

	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	assert_int_equal(shunt_dump_file(dump_dir, "asked", again, sizeof(again)), 0);
	assert_string_not_equal(path, again);
	assert_int_equal(count_files(NULL, 0), before + 2);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	dump = json_load_file(path, 0, NULL);
	assert_non_null(dump);
	json_decref(dump);
	assert_int_equal(shunt_dump_file("/nonexistent/dir", "asked", path, sizeof(path)), -ENOENT);
	assert_int_equal(shunt_dump_file("/proc", "asked", path, sizeof(path)), -ENOENT);
	assert_int_equal(shunt_dump_file("/dev/null", "asked", path, sizeof(path)), -ENOTDIR);
}

/* As in a directory for all, where nobody can remove what another user has put at the name. */
TEST(test_file_whose_hidden_name_is_taken_is_written)
{
	char path[256], taken[256], *number;

	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	number = strrchr(path, '-') + 1;
	snprintf(taken, sizeof(taken), "%s/.%.*s%d.part", dump_dir, (int)(number - strrchr(path, '/') - 1),
	    strrchr(path, '/') + 1, atoi(number) + 1);
	assert_int_equal(mkdir(taken, 0700), 0);
	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	assert_int_equal(rmdir(taken), 0);
	assert_int_equal(access(path, R_OK), 0);
}

/* Two processes of one number may have one folder. What comes second has another name, and loses nothing either. */
TEST(test_file_replaces_none_that_came_meanwhile)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	char path[256], *number;
	struct stat st;
	json_t *dump;

	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	number = strrchr(path, '-') + 1;
	snprintf(intruder, sizeof(intruder), "%.*s%d.json", (int)(number - path), path, atoi(number) + 1);
	shunt_recorder_set_rank(rec, 0, 2, 0);
	shunt_recorder_ready(rec, &intruding_gpu, ctrl, NULL);
	assert_int_equal(shunt_dump_file(dump_dir, "asked", path, sizeof(path)), 0);
	assert_int_equal(stat(intruder, &st), 0);
	assert_int_equal(st.st_size, 2);
	assert_string_not_equal(path, intruder);
	dump = json_load_file(path, 0, NULL);
	assert_non_null(dump);
	json_decref(dump);
	unlink(intruder);
	intruder[0] = '\0';
	recorder_remove(rec);
	free(ctrl);
}

struct containers {
	char path[2][256]; /* of the dump of each one's first process; "": there is none */
	atomic_int done;
};

static int container_body(int rank, void *arg)
{
	struct containers *c = arg;
	pid_t first = unshare(CLONE_NEWPID) ? -1 : child_fork();

	if (!first) {
		if (getpid() != 1 || shunt_dump_file(dump_dir, "asked", c->path[rank], sizeof(c->path[rank])))
			c->path[rank][0] = '\0';
		atomic_fetch_add(&c->done, 1);
		for (int i = 0; i < 6000 && atomic_load(&c->done) < 2;
		    i++) /* the number of a namespace that has gone is free again */
			pause_us(PAUSE_POLL, 10000);
		_exit(0);
	}
	return first < 0 || waitpid(first, NULL, 0) != first ? -EPERM : 0;
}

TEST(test_files_of_containers_have_names_of_their_own)
{
	struct containers *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	json_t *dump[2];
	int errs[2];

	unit_run_processes(2, container_body, c, errs);
	if (errs[0] || errs[1]) {
		print_message("not allowed to make a PID namespace\n");
		skip();
	}
	for (int i = 0; i < 2; i++) {
		dump[i] = json_load_file(c->path[i], 0, NULL);
		assert_non_null(dump[i]);
		assert_int_equal(number(dump[i], "pid"), 1);
	}
	assert_int_equal(atoi(strrchr(c->path[0], '-') + 1),
	    atoi(strrchr(c->path[1], '-') + 1)); /* it is not this one that differs */
	assert_string_not_equal(c->path[0], c->path[1]);
	assert_int_not_equal(number(dump[0], "pid_namespace"), number(dump[1], "pid_namespace"));
	json_decref(dump[0]);
	json_decref(dump[1]);
	munmap(c, sizeof(*c));
}

TEST(test_error_is_dumped_once)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	int before = count_files(NULL, 0);

	shunt_dump_error(rec, -ETIMEDOUT);
	assert_int_equal(count_files(NULL, 0), before + 1);
	shunt_dump_error(rec, -EIO);
	assert_int_equal(count_files(NULL, 0), before + 1);
	recorder_remove(rec);
}

static void earlier_handler(int number)
{
	earlier_handler_ran++;
}

TEST(test_signal_writes_a_file_and_calls_the_earlier_handler)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	int before = count_files(NULL, 0);

	kill(getpid(), SIGUSR1);
	for (int i = 0; i < 6000 && count_files(NULL, 0) == before; i++)
		pause_us(PAUSE_POLL, 10000);
	for (int i = 0; i < 6000 && !earlier_handler_ran; i++)
		pause_us(PAUSE_POLL, 10000);
	assert_int_equal(count_files(NULL, 0), before + 1);
	assert_int_equal(earlier_handler_ran, 1);
	recorder_remove(rec);
}

static int connect_to(int fd, pid_t pid)
{
	struct sockaddr_un address;
	socklen_t length = shunt_dump_address(&address, geteuid(), shunt_dump_namespace("self"), pid);

	return connect(fd, (struct sockaddr *)&address, length);
}

static char *read_all(int fd, size_t *bytes_p)
{
	char *text = calloc(1, 1 << 20);
	ssize_t n;

	*bytes_p = 0;
	while ((n = read(fd, text + *bytes_p, (1 << 20) - 1 - *bytes_p)) > 0)
		*bytes_p += (size_t)n;
	return text;
}

static char *ask(pid_t pid, size_t *bytes_p)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char *text;

	connect_to(fd, pid); /* if nobody is there, nothing can be read */
	text = read_all(fd, bytes_p);
	close(fd);
	return text;
}

TEST(test_socket_answers_with_the_dump)
{
	struct shunt_recorder *rec = recorder_add(id_a);
	struct shunt_coll c = collective(SHUNT_ALLREDUCE, 1000, 0);
	size_t bytes;
	char *text;
	json_t *dump;

	for (int i = 0; i < 1500; i++) /* more than a socket's buffer holds */
		shunt_recorder_add(rec, &c, "oneshot", 0, false);
	text = ask(getpid(), &bytes);
	dump = json_loads(text, 0, NULL);
	assert_non_null(dump);
	assert_string_equal(string(dump, "reason"), "asked");
	assert_int_equal(
	    json_array_size(json_object_get(json_array_get(json_object_get(dump, "communicators"), 0), "operations")),
	    SHUNT_RECORDER_OPERATIONS);
	json_decref(dump);
	free(text);
	recorder_remove(rec);
}

/* Whatever comes as the request: it ends without an answer, and the next client gets its own. */
TEST(test_socket_gives_no_answer_to_what_is_no_request)
{
	static char line_too_long[300] = "state", zeroes[8] = "dump\0\n";
	static const struct {
		const char *text;
		size_t bytes;
	} odd[] = { { "state 8", 7 }, { "dump\nstate\n", 11 }, { "GET / HTTP/1.0\r\n", 16 }, { "\n", 1 },
		{ "\xff\xfe\n", 3 }, { zeroes, 6 }, { line_too_long, sizeof(line_too_long) } };
	struct shunt_recorder *rec = recorder_add(id_a);
	size_t bytes;

	memset(line_too_long + 5, ' ', sizeof(line_too_long) - 6);
	line_too_long[sizeof(line_too_long) - 1] = '\n';
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		assert_int_equal(connect_to(fd, getpid()), 0);
		assert_int_equal(send(fd, odd[i].text, odd[i].bytes, MSG_NOSIGNAL), odd[i].bytes);
		free(read_all(fd, &bytes));
		close(fd);
		assert_int_equal(bytes, 0);
	}
	free(ask(getpid(), &bytes));
	assert_true(bytes > 0);
	recorder_remove(rec);
}

TEST(test_signal_to_a_child_is_not_the_parents)
{
	struct shunt_recorder *rec;
	int before = count_files(NULL, 0), ran = earlier_handler_ran;

#if defined(__SANITIZE_THREAD__)
	skip(); /* in a child of a process that has threads it runs no handlers */
#endif
	rec = recorder_add(id_a);
	assert_int_equal(IN_CHILD(raise(SIGUSR1) || earlier_handler_ran != ran + 1), 0);
	/* The thread that would write the file answers, and again after it has looked for a signal. */
	for (int i = 0; i < 2; i++) {
		size_t bytes;

		free(ask(getpid(), &bytes));
		assert_true(bytes > 0);
	}
	assert_int_equal(count_files(NULL, 0), before);
	recorder_remove(rec);
}

/* A child inherits neither the thread nor the communicators; it gets its own with its first communicator. */
static int child_body(int rank, void *arg)
{
	struct shunt_recorder *rec;
	size_t bytes;
	char *text = ask(getpid(), &bytes);

	free(text);
	if (bytes)
		return -1;
	rec = recorder_add(id_b);
	text = ask(getpid(), &bytes);
	json_t *dump = json_loads(text, 0, NULL);
	if (!dump || json_array_size(json_object_get(dump, "communicators")) != 1 || number(dump, "pid") != getpid())
		return -2;
	json_decref(dump);
	free(text);
	recorder_remove(rec);
	return 0;
}

TEST(test_forked_child_answers_for_itself)
{
	struct shunt_recorder *rec;
	int err;

#if defined(__SANITIZE_THREAD__)
	skip(); /* it forbids threads in a child of a process that has some */
#endif
	rec = recorder_add(id_a);
	unit_run_processes(1, child_body, NULL, &err);
	assert_int_equal(err, 0);
	recorder_remove(rec);
}

/* Calls of the library to the C library, which the linker leads here. */
static atomic_int accepts_refused, pauses;

int __real_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
	int made = __real_accept4(fd, address, bytes, flags);

	if (made < 0 && errno == EMFILE)
		atomic_fetch_add(&accepts_refused, 1);
	return made;
}

int __real_poll(struct pollfd *fds, nfds_t n, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms)
{
	int ready = __real_poll(fds, n, ms);

	if (ms >= 100 && !ready)
		atomic_fetch_add(&pauses, 1);
	return ready;
}

/* No descriptor is left for the connection: it waits until there is one, and nobody turns in circles meanwhile. */
static int full_body(int rank, void *arg)
{
	struct shunt_recorder *rec = recorder_add(id_b);
	struct rlimit few = { 64, 64 };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), last, spare, refused, paused;
	size_t bytes;
	char *text;
	json_t *dump;

	if (setrlimit(RLIMIT_NOFILE, &few))
		return -1;
	for (last = fd; (spare = dup(0)) >= 0; last = spare)
		;
	if (last == fd || connect_to(fd, getpid()))
		return -2;
	if (!until_counted(&accepts_refused, 4, "refused accepts"))
		return -5;
	refused = atomic_load(&accepts_refused); /* before the pauses, of which more may come between the two looks */
	paused = atomic_load(&pauses);
	if (refused > paused + 1)
		return -3;
	for (int i = fd + 1; i <= last; i++)
		close(i);
	text = read_all(fd, &bytes);
	dump = json_loads(text, 0, NULL);
	if (!dump)
		return -4;
	json_decref(dump);
	free(text);
	close(fd);
	recorder_remove(rec);
	return 0;
}

TEST(test_socket_without_descriptors_waits_at_rest)
{
	int err;

#if defined(__SANITIZE_THREAD__)
	skip(); /* it forbids threads in a child of a process that has some */
#endif
	unit_run_processes(1, full_body, NULL, &err);
	assert_int_equal(err, 0);
}

static int remove_dir(void **state)
{
	char path[512];

	while (count_files(path, sizeof(path)) && !unlink(path))
		;
	return rmdir(dump_dir);
}

int main(void)
{
	if (!mkdtemp(dump_dir))
		return 1;
	setenv("SHUNT_DUMP_DIR", dump_dir, 1);
	setenv("SHUNT_DUMP_SIGNAL", "1", 1);
	setenv("SHUNT_LOG", "error", 1);
	unsetenv("SHUNT_DOCTOR");
	signal(SIGUSR1, earlier_handler);
	return tests_run(NULL, remove_dir);
}
