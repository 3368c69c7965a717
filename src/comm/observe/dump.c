/* SPDX-License-Identifier: MIT */
#include "comm/observe/dump.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/config.h"
#include "base/dump_address.h"
#include "base/dump_schema.h"
#include "base/fd.h"
#include "base/lock.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "comm/observe/call_check.h"
#include "comm/observe/counters.h"
#include "comm/observe/thread_note.h"
#include "comm/observe/recorder.h"

#define MAX_FILES 32 /* the most that one process writes, so that the files do not fill a disk */
#define ASK_TIMEOUT_MS 5000
#define REQUEST_WAIT_MS 50 /* a client of an earlier version sends no request, and gets what it can read */
#define EARLIER_FORMAT 2
#define MAX_COUNTERS (SHUNT_NKINDS * (SHUNT_COUNTER_PATHS + 1 + SHUNT_NREASONS))
#define MAX_THREADS 256
#define STACK_BYTES (512u << 10)
#define HOST_PID_NAMESPACE 0xeffffffcu /* its inode since Linux 3.8 */
#define PAUSE_MS 200                   /* before the next accept when descriptors had run out */
#define DEVICE_WAIT_MS 2000            /* for a communicator; after a device that did not answer, the time below */
#define UNRESPONSIVE_WAIT_MS 50

/* ---- the text */

struct times {
	uint64_t real_ns, mono_ns;
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Ranks on several hosts share only the time of day. */
static uint64_t time_of_day(const struct times *t, uint64_t mono_ns)
{
	return t->real_ns - (t->mono_ns > mono_ns ? t->mono_ns - mono_ns : 0);
}

/* Ends the array that the caller began. */
static void put_numbers(struct shunt_json_writer *w, const unsigned *values, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		shunt_json_write_uint(w, NULL, values[i]);
	shunt_json_write_array_end(w);
}

static uint64_t sum(const uint64_t *values, size_t n)
{
	uint64_t total = 0;

	while (n--)
		total += *values++;
	return total;
}

/* LL128 slots and chunks to or from each other rank, all channels together; 0 for this rank. */
static void put_peers(struct shunt_json_writer *w, const uint64_t *lines, const uint64_t *chunks,
    const struct shunt_recorder_snapshot *snapshot)
{
	unsigned n = (unsigned)snapshot->nranks,
	         per_peer = snapshot->ctrl->inbox ? SHUNT_STAGED_P2P_CHANNELS / (n - 1) : SHUNT_P2P_PER_PEER(n);

	for (unsigned r = 0; r < n; r++) {
		/* The table has no entry for this rank. */
		size_t at = (size_t)(r - (r > (unsigned)snapshot->rank)) * per_peer;

		shunt_json_write_uint(w, NULL,
		    r == (unsigned)snapshot->rank ? 0 : sum(lines + at, per_peer) + sum(chunks + at, per_peer));
	}
	shunt_json_write_array_end(w);
}

static void put_device(struct shunt_json_writer *w, const struct shunt_recorder_snapshot *snapshot)
{
	const struct shunt_ctrl *c = snapshot->ctrl;
	const struct shunt_progress *p = &c->progress;

	shunt_dump_write_comm_progress_begin(w);
	shunt_dump_write_progress_last(w, p->now & ~SHUNT_OP_CAPTURED);
	shunt_dump_write_progress_captured(w, (p->now & SHUNT_OP_CAPTURED) != 0);
	shunt_dump_write_progress_eager(w, p->eager);
	shunt_dump_write_progress_replays(w, p->replays);
	shunt_dump_write_progress_running(w, p->begun != p->ended);
	shunt_json_write_object_end(w);
	if (snapshot->only_progress)
		return;
	shunt_dump_write_comm_channels_begin(w);
	shunt_dump_write_channels_epochs(w, sum(c->epoch, SHUNT_LL128_CHANNELS));
	if (snapshot->nranks > 1 && snapshot->nranks <= SHUNT_MAX_RANKS && snapshot->rank >= 0 &&
	    !snapshot->over_hosts) {
		shunt_dump_write_channels_sent_begin(w);
		put_peers(w, c->ll128.sent, c->simple.sent, snapshot);
		shunt_dump_write_channels_received_begin(w);
		put_peers(w, c->ll128.received, c->simple.received, snapshot);
		shunt_dump_write_channels_taken_begin(w);
		put_peers(w, c->ll128.head, c->simple.head, snapshot);
	}
	shunt_json_write_object_end(w);
	shunt_dump_write_comm_aborted(w, c->abort != 0);
}

static void put_fault(struct shunt_json_writer *w, const struct shunt_fault *fault)
{
	static const char *const names[] = { [SHUNT_FAULT_TIMEOUT] = "timeout",
		[SHUNT_FAULT_ABORT] = "abort",
		[SHUNT_FAULT_MISMATCH] = "mismatch",
		[SHUNT_FAULT_PLACE] = "place",
		[SHUNT_FAULT_EXPERT] = "expert",
		[SHUNT_FAULT_DIFFERS] = "differs",
		[SHUNT_FAULT_UNDER_WAY] = "under way",
		[SHUNT_FAULT_OVERFLOW] = "overflow" };
	char text[256];

	shunt_dump_write_comm_fault_begin(w);
	shunt_dump_write_fault_what(w, fault->set < sizeof(names) / sizeof(names[0]) ? names[fault->set] : "?");
	shunt_dump_write_fault_peer(w, fault->peer == SHUNT_FAULT_ANY_PEER ? -1 : (int64_t)fault->peer);
	shunt_dump_write_fault_op(w, fault->op & ~SHUNT_OP_CAPTURED);
	if (fault->set == SHUNT_FAULT_MISMATCH) {
		shunt_check_text(&fault->mine, fault->mine_count, text, sizeof(text));
		shunt_dump_write_fault_mine(w, text);
		shunt_check_text(&fault->theirs, fault->theirs_count, text, sizeof(text));
		shunt_dump_write_fault_theirs(w, text);
	} else {
		shunt_dump_write_fault_channel(w, fault->channel == SHUNT_CHECK_CHANNEL ? -1 : (int64_t)fault->channel);
		shunt_dump_write_fault_expected(w, fault->expected);
		shunt_dump_write_fault_seen(w, fault->seen);
	}
	shunt_json_write_object_end(w);
}

struct writer {
	struct shunt_json_writer json;
	struct times times;
	struct shunt_dump_request request;
	struct shunt_operation *ops; /* room for a ring */
	struct shunt_counter *counters;
	bool unresponsive; /* a device did not answer */
	int err;
};

static enum shunt_operation_state operation_state(
    const struct shunt_operation *op, const struct shunt_recorder_snapshot *snapshot)
{
	if (!op->path && op->seq >= snapshot->held_by)
		return SHUNT_OPERATION_IN_NCCL;
	if (!op->path && !op->captured && op->seq <= snapshot->marked)
		return op->seq <= snapshot->finished ? SHUNT_OPERATION_FINISHED : SHUNT_OPERATION_RUNNING;
	return shunt_operation_state(op, snapshot->ctrl ? &snapshot->ctrl->progress : NULL, &snapshot->fault);
}

static void put_operation(
    struct writer *writer, const struct shunt_operation *op, const struct shunt_recorder_snapshot *snapshot)
{
	bool known = (unsigned)op->dtype < SHUNT_NFORMATS;
	struct shunt_json_writer *w = &writer->json;
	enum shunt_operation_state state = operation_state(op, snapshot);
	char stream[32];

	snprintf(stream, sizeof(stream), "0x%" PRIxPTR, (uintptr_t)op->stream);
	shunt_json_write_object(w, NULL);
	shunt_dump_write_op_seq(w, op->seq);
	shunt_dump_write_op_number(w, op->number);
	shunt_dump_write_op_kind(w, shunt_operation_name(op));
	shunt_dump_write_op_count(w, op->count);
	shunt_dump_write_op_dtype(w,
	    known                       ? shunt_dtype_name(op->dtype) :
	        op->kind < SHUNT_NKINDS ? "bytes" :
	                                  "elements");
	if (shunt_kind_reduces(op->kind) && known)
		shunt_dump_write_op_op(w, shunt_redop_name(op->redop));
	if (shunt_kind_has_root(op->kind))
		shunt_dump_write_op_root(w, op->root);
	if (shunt_kind_is_p2p(op->kind))
		shunt_dump_write_op_peer(w, op->root);
	shunt_dump_write_op_path(w, op->path ? op->path : "nccl");
	if (!op->path && op->reason != SHUNT_REASON_NONE)
		shunt_dump_write_op_reason(w, shunt_reason_name(op->reason));
	shunt_dump_write_op_stream(w, stream);
	shunt_dump_write_op_time_ns(w, time_of_day(&writer->times, op->time_ns));
	shunt_dump_write_op_captured(w, op->captured);
	shunt_dump_write_op_state(
	    w, writer->request.format < 3 && !op->path ? "forwarded" : shunt_operation_state_name(state));
	shunt_json_write_object_end(w);
}

static bool is_unfinished(enum shunt_operation_state state)
{
	return state == SHUNT_OPERATION_ENQUEUED || state == SHUNT_OPERATION_RUNNING ||
	    state == SHUNT_OPERATION_IN_NCCL;
}

static void put_operations(struct writer *w, struct shunt_recorder *rec, const struct shunt_recorder_snapshot *snapshot)
{
	shunt_dump_write_comm_operations_begin(&w->json);
	for (int captured = 1; captured >= 0 && w->request.what != SHUNT_DUMP_COUNTERS; captured--) {
		size_t n = shunt_recorder_read(rec, captured, w->ops, SHUNT_RECORDER_OPERATIONS);

		for (size_t i = 0; i < n; i++)
			if (n - i <= w->request.calls || is_unfinished(operation_state(&w->ops[i], snapshot)))
				put_operation(w, &w->ops[i], snapshot);
	}
	shunt_json_write_array_end(&w->json);
}

/* What format 3 has beyond the earlier ones. */
static void put_calls(struct writer *writer, struct shunt_recorder *rec, const struct shunt_recorder_snapshot *s)
{
	struct shunt_json_writer *w = &writer->json;
	size_t n = shunt_recorder_counters(rec, writer->counters, MAX_COUNTERS);

	shunt_dump_write_comm_nccl_begin(w);
	shunt_dump_write_nccl_returned(w, s->returned);
	if (s->marked) {
		shunt_dump_write_nccl_marked(w, s->marked);
		shunt_dump_write_nccl_finished(w, s->finished);
	}
	if (s->nccl_result)
		shunt_dump_write_nccl_result(w, s->nccl_result);
	shunt_json_write_object_end(w);
	if (s->have_waits && s->nranks > 0) {
		shunt_dump_write_comm_waits_ns_begin(w);
		for (int r = 0; r < s->nranks && r < (int)SHUNT_WAIT_RANKS; r++)
			shunt_json_write_uint(w, NULL, s->waits_ns[r]);
		shunt_json_write_array_end(w);
	}
	shunt_dump_write_comm_counters_begin(w);
	for (size_t i = 0; i < n; i++) {
		shunt_json_write_object(w, NULL);
		shunt_dump_write_counter_op(w, writer->counters[i].op);
		shunt_dump_write_counter_path(w, writer->counters[i].path);
		shunt_dump_write_counter_reason(w, writer->counters[i].reason);
		shunt_dump_write_counter_calls(w, writer->counters[i].calls);
		shunt_dump_write_counter_bytes(w, writer->counters[i].bytes);
		shunt_json_write_object_end(w);
	}
	shunt_json_write_array_end(w);
}

static void put_threads(struct writer *writer)
{
	struct shunt_json_writer *w = &writer->json;
	struct shunt_inside_call calls[MAX_THREADS];
	size_t n = shunt_inside_read(calls, MAX_THREADS);
	char key[17];

	if (!n)
		return;
	shunt_dump_write_process_threads_begin(w);
	for (size_t i = 0; i < n; i++) {
		snprintf(key, sizeof(key), "%016" PRIx64, calls[i].tag);
		shunt_json_write_object(w, NULL);
		shunt_dump_write_thread_function(w, calls[i].function);
		if (calls[i].tag)
			shunt_dump_write_thread_key(w, key);
		if (calls[i].seq)
			shunt_dump_write_thread_seq(w, calls[i].seq);
		shunt_dump_write_thread_since_ns(w, time_of_day(&writer->times, calls[i].since_ns));
		shunt_json_write_object_end(w);
	}
	shunt_json_write_array_end(w);
}

/* The host's side of a communicator. */
static void put_host(struct writer *writer, const struct shunt_recorder_snapshot *s)
{
	struct shunt_json_writer *w = &writer->json;
	const char *error = s->error ? strerrorname_np(-s->error) : NULL;

	shunt_dump_write_comm_id(w, s->id);
	shunt_dump_write_comm_key(w, s->key);
	shunt_dump_write_comm_rank(w, s->rank);
	shunt_dump_write_comm_nranks(w, s->nranks);
	shunt_dump_write_comm_device(w, s->device);
	shunt_dump_write_comm_state(w, s->forward ? "forward" : s->have_device ? "ready" : "new");
	if (s->forward)
		shunt_dump_write_comm_reason(w, s->reason);
	if (s->error)
		shunt_dump_write_comm_error(w, error ? error : "?");
	if (s->phase) {
		shunt_dump_write_comm_phase(w, s->phase);
		shunt_dump_write_comm_phase_time_ns(w, time_of_day(&writer->times, s->phase_ns));
	}
	shunt_dump_write_comm_calls(w, s->calls);
	shunt_dump_write_comm_collectives(w, s->collectives);
	shunt_dump_write_comm_captured_calls(w, s->captured);
	if (!s->npeers)
		return;
	shunt_dump_write_comm_sends_begin(w);
	put_numbers(w, s->sends, s->npeers);
	shunt_dump_write_comm_receives_begin(w);
	put_numbers(w, s->receives, s->npeers);
}

static void put_communicator(struct shunt_recorder *rec, void *arg)
{
	struct writer *w = arg;
	struct shunt_recorder_snapshot snapshot;
	int err = shunt_recorder_snapshot(rec,
	    w->request.what == SHUNT_DUMP_COUNTERS  ? SHUNT_READ_NOTHING :
	        w->request.what == SHUNT_DUMP_STATE ? SHUNT_READ_PROGRESS :
	                                              SHUNT_READ_ALL,
	    w->unresponsive ? UNRESPONSIVE_WAIT_MS : DEVICE_WAIT_MS, &snapshot);

	if (err) {
		w->err = err;
		return;
	}
	w->unresponsive |= snapshot.unresponsive;
	shunt_json_write_object(&w->json, NULL);
	put_host(w, &snapshot);
	if (snapshot.fault.set)
		put_fault(&w->json, &snapshot.fault);
	if (snapshot.unresponsive)
		shunt_dump_write_comm_unresponsive(&w->json, true);
	if (snapshot.ctrl)
		put_device(&w->json, &snapshot);
	if (w->request.format >= 3)
		put_calls(w, rec, &snapshot);
	put_operations(w, rec, &snapshot);
	shunt_json_write_object_end(&w->json);
	shunt_recorder_snapshot_finish(&snapshot);
}

static void program_name(char *name, size_t bytes)
{
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, name, bytes - 1);

	if (fd >= 0)
		close(fd);
	name[n > 0 ? n : 0] = '\0';
	for (ssize_t i = 0; i + 1 < n; i++)
		if (!name[i])
			name[i] = ' ';
}

static void host_name(char *name, size_t bytes)
{
	if (gethostname(name, bytes) || !*name)
		snprintf(name, bytes, "localhost");
	name[bytes - 1] = '\0';
}

bool shunt_dump_request_read(const char *line, struct shunt_dump_request *request)
{
	unsigned calls = 8;
	char end;

	*request = (struct shunt_dump_request){ SHUNT_DUMP_ALL, SHUNT_DUMP_FORMAT, SHUNT_RECORDER_OPERATIONS };
	if (!strcmp(line, "dump"))
		return true;
	if (!strcmp(line, "counters")) {
		request->what = SHUNT_DUMP_COUNTERS;
		return true;
	}
	if (strcmp(line, "state") &&
	    (strncmp(line, "state ", 6) || line[6] < '0' || line[6] > '9' ||
	        sscanf(line + 6, "%4u%c", &calls, &end) != 1))
		return false;
	request->what = SHUNT_DUMP_STATE;
	request->calls = calls;
	return true;
}

int shunt_dump_write(FILE *out, const char *reason)
{
	struct shunt_dump_request all;

	shunt_dump_request_read("dump", &all);
	return shunt_dump_answer(out, reason, &all);
}

int shunt_dump_answer(FILE *out, const char *reason, const struct shunt_dump_request *request)
{
	struct writer w = { .json = { .out = out, .lines = 4 },
		.request = *request,
		.times = { clock_ns(CLOCK_REALTIME), clock_ns(CLOCK_MONOTONIC) } };
	struct shunt_json_writer *json = &w.json;
	char host[256], program[512];

	w.ops = malloc(SHUNT_RECORDER_OPERATIONS * sizeof(*w.ops));
	w.counters = malloc(MAX_COUNTERS * sizeof(*w.counters));
	if (!w.ops || !w.counters) {
		w.err = -ENOMEM;
		goto out;
	}
	host_name(host, sizeof(host));
	program_name(program, sizeof(program));
	shunt_json_write_object(json, NULL);
	shunt_dump_write_process_shunt_dump(json, request->format);
	shunt_dump_write_process_version(json, SHUNT_VERSION);
	shunt_dump_write_process_reason(json, reason);
	shunt_dump_write_process_host(json, host);
	shunt_dump_write_process_pid(json, (uint64_t)getpid());
	shunt_dump_write_process_pid_namespace(json, shunt_dump_namespace("self"));
	shunt_dump_write_process_program(json, program);
	shunt_dump_write_process_time_ns(json, w.times.real_ns);
	if (request->format >= 3) {
		shunt_dump_write_process_uid(json, geteuid());
		put_threads(&w);
	}
	shunt_dump_write_process_communicators_begin(json);
	shunt_recorder_visit(put_communicator, &w);
	shunt_json_write_array_end(json);
	shunt_json_write_object_end(json);
out:
	free(w.counters);
	free(w.ops);
	return w.err;
}

/* ---- the file */

/* Processes of different containers may have the same host name and pid. The PID namespace tells them apart. */
static void process_name(char *name, size_t bytes)
{
	ino_t pid_namespace = shunt_dump_namespace("self");
	char host[256];

	host_name(host, sizeof(host));
	host[strcspn(host, "/")] = '\0';
	if (pid_namespace && pid_namespace != HOST_PID_NAMESPACE)
		snprintf(name, bytes, "%s-%d.%lu", host, (int)getpid(), (unsigned long)pid_namespace);
	else
		snprintf(name, bytes, "%s-%d", host, (int)getpid());
}

/*
 * Gives a complete file the first free name from number n on. Another process with this name may have been here, or be
 * here now in another container or on another host: its file must not be lost.
 */
static int publish(const char *hidden, const char *dir, const char *name, unsigned n, char *path, size_t bytes)
{
	for (unsigned end = n + 1000000; n < end; n++) {
		int length = snprintf(path, bytes, "%s/shunt-%s-%u.json", dir, name, n);

		if (length < 0 || (size_t)length >= bytes)
			return -ENAMETOOLONG;
		if (!link(hidden, path))
			return unlink(hidden) ? -errno : 0;
		if (errno != EEXIST && access(path, F_OK)) /* the file system has no links */
			return rename(hidden, path) ? -errno : 0;
	}
	return -EEXIST;
}

static int make_dir(const char *dir)
{
	return mkdir(dir, 0700) && errno != EEXIST ? -errno : 0;
}

/*
 * Opens the file that becomes the dump. Its name is left by another process that died while writing, or, where all may
 * write, taken by another user, whose file stays: then a name that nobody can know beforehand. A descriptor or -errno.
 */
static int open_hidden(const char *dir, const char *name, unsigned n, char *path, size_t bytes)
{
	int length = snprintf(path, bytes, "%s/.shunt-%s-%u.part", dir, name, n), fd;

	if (length < 0 || (size_t)length + sizeof("-XXXXXX") > bytes)
		return -ENAMETOOLONG;
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 && errno == EEXIST) {
		memcpy(path + length, "-XXXXXX", sizeof("-XXXXXX"));
		fd = mkostemp(path, O_CLOEXEC);
	}
	return fd < 0 ? -errno : fd;
}

int shunt_dump_file(const char *dir, const char *reason, char *path, size_t bytes)
{
	static atomic_uint files;
	char name[300], hidden[PATH_MAX];
	unsigned n = atomic_fetch_add(&files, 1);
	int fd, err;
	FILE *f;

	shunt_lock_check_blocking("writes a file", false);
	if (n >= MAX_FILES)
		return -EDQUOT;
	err = make_dir(dir);
	if (err)
		return err;
	process_name(name, sizeof(name));
	fd = open_hidden(dir, name, n, hidden, sizeof(hidden));
	if (fd < 0)
		return fd;
	f = fdopen(fd, "w");
	if (!f) {
		err = -errno;
		close(fd);
		goto err_unlink;
	}
	err = shunt_dump_write(f, reason);
	if (ferror(f) && !err)
		err = -EIO;
	if (fclose(f) && !err)
		err = -errno;
	if (!err)
		err = publish(hidden, dir, name, n, path, bytes);
	if (!err)
		return 0;
err_unlink:
	unlink(hidden);
	return err;
}

static void write_and_log(const char *dir, const char *reason)
{
	char path[PATH_MAX];
	int err = shunt_dump_file(dir, reason, path, sizeof(path));

	if (err)
		shunt_warn("no dump of this process in %s: %s", dir,
		    err == -EDQUOT ? "it has written enough of them" : strerror(-err));
	else
		shunt_banner("what this process knows of its communicators is in %s; `shunt doctor dumps` on all "
		             "ranks' files says who waits for whom",
		    path);
}

void shunt_dump_error(struct shunt_recorder *rec, int err)
{
	const char *dir = shunt_config()->dump_dir;

	if (shunt_recorder_error(rec, err) && *dir)
		write_and_log(dir, "error");
}

/* ---- the socket */

static int make_socket(void)
{
	struct sockaddr_un address;
	socklen_t bytes = shunt_dump_address(&address, geteuid(), shunt_dump_namespace("self"), getpid());
	int fd = SHUNT_FD(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), err;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, bytes) || listen(fd, 64)) {
		err = -errno;
		shunt_close_fd(&fd);
		return err;
	}
	return fd;
}

/* Gives up a client that does not read. */
static void send_all(int fd, const char *text, size_t bytes)
{
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + ASK_TIMEOUT_MS * 1000000ull;

	while (bytes) {
		ssize_t n = send(fd, text, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		struct pollfd p = { .fd = fd, .events = POLLOUT };

		if (n > 0) {
			text += n;
			bytes -= (size_t)n;
		} else if ((n < 0 && errno != EAGAIN && errno != EINTR) || clock_ns(CLOCK_MONOTONIC) > end ||
		    poll(&p, 1, ASK_TIMEOUT_MS) == 0) {
			return;
		}
	}
}

/* False: what the client has sent is no request. */
static bool receive_request(int fd, struct shunt_dump_request *request)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char line[257];
	ssize_t n;

	shunt_dump_request_read("dump", request);
	request->format = EARLIER_FORMAT;
	if (poll(&p, 1, REQUEST_WAIT_MS) <= 0)
		return true;
	n = recv(fd, line, sizeof(line) - 1, MSG_DONTWAIT);
	if (n <= 0)
		return n == 0;
	line[n] = '\0';
	if (strlen(line) != (size_t)n || line[n - 1] != '\n')
		return false;
	line[n - 1] = '\0';
	return shunt_dump_request_read(line, request);
}

/* False: the connection cannot be accepted now, and stays in the queue. */
static bool answer_client(int listener)
{
	int fd = SHUNT_FD(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	struct shunt_dump_request request;
	struct ucred who = { .uid = (uid_t)-1 };
	socklen_t n = sizeof(who);
	size_t bytes = 0;
	char *text = NULL;
	FILE *f;

	if (fd < 0)
		return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) || (who.uid && who.uid != geteuid()))
		goto out;
	if (!receive_request(fd, &request))
		goto out;
	f = open_memstream(&text, &bytes);
	if (!f)
		goto out;
	int err = shunt_dump_answer(f, "asked", &request);
	if (!fclose(f) && !err)
		send_all(fd, text, bytes);
	free(text);
out:
	shunt_close_fd(&fd);
	return true;
}

/* ---- the signal */

static atomic_int signal_fd = -1;
static struct sigaction signal_before;

static void on_signal(int number, siginfo_t *info, void *context)
{
	uint64_t one = 1;
	int saved = errno, fd = atomic_load(&signal_fd);

	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		errno = 0; /* the counter is full, so the thread will wake up anyway */
	errno = saved;
	if (signal_before.sa_flags & SA_SIGINFO)
		signal_before.sa_sigaction(number, info, context);
	else if (signal_before.sa_handler != SIG_DFL && signal_before.sa_handler != SIG_IGN)
		signal_before.sa_handler(number);
}

static void catch_signal(void)
{
	static bool caught; /* a child of fork() inherits the handler */
	struct sigaction action;

	if (caught || sigaction(SIGUSR1, NULL, &signal_before))
		return;
	action = signal_before;
	action.sa_flags = (action.sa_flags & (SA_ONSTACK | SA_NODEFER)) | SA_SIGINFO | SA_RESTART;
	action.sa_sigaction = on_signal;
	caught = !sigaction(SIGUSR1, &action, NULL);
	if (!caught)
		shunt_warn("SHUNT_DUMP_SIGNAL: SIGUSR1 cannot be caught: %m");
}

/* ---- the thread */

static atomic_bool started; /* in this process */
static int listener_fd = -1;
static char signal_dir[PATH_MAX];

/* A forked child has neither the thread nor the descriptors. */
static void end_service(void)
{
	atomic_store(&signal_fd, -1);
	listener_fd = -1;
	atomic_store(&started, false);
}
SHUNT_IN_FORKED_CHILD(end_service)

static void *serve(void *arg)
{
	struct pollfd fds[2] = { { .fd = listener_fd, .events = POLLIN },
		{ .fd = atomic_load(&signal_fd), .events = POLLIN } };
	int listener = fds[0].fd;
	uint64_t times;

	for (;;) {
		if (poll(fds, 2, fds[0].fd == listener ? -1 : PAUSE_MS) < 0 && errno != EINTR)
			return NULL;
		if (fds[0].fd != listener) /* a signal may cut the pause short, which does no harm */
			fds[0] = (struct pollfd){ .fd = listener, .events = POLLIN };
		else if (fds[0].revents & POLLIN && !answer_client(listener))
			fds[0].fd = -1; /* out of descriptors: wait before the next accept, not in a busy loop */
		if (fds[1].revents & POLLIN && read(fds[1].fd, &times, sizeof(times)) == sizeof(times))
			write_and_log(signal_dir, "signal");
	}
}

static void start_service(void)
{
	const struct shunt_config *config = shunt_config();
	const char *dir = *config->dump_dir ? config->dump_dir : secure_getenv("TMPDIR");
	int err = *config->dump_dir ? make_dir(dir) : 0;

	/* Warn now, not when there is a dump to write. */
	if (!err && *config->dump_dir && access(dir, W_OK | X_OK))
		err = -errno;
	if (err)
		shunt_warn("SHUNT_DUMP_DIR=%s: no dump can be written there: %s", dir, shunt_error_text(err).s);
	snprintf(signal_dir, sizeof(signal_dir), "%s", dir && *dir ? dir : "/tmp");
	listener_fd = config->doctor ? make_socket() : -1;
	if (config->doctor && listener_fd < 0)
		shunt_info(SHUNT_LOG_INIT, "`shunt doctor --pid` cannot ask this process: %s",
		    shunt_error_text(listener_fd).s);
	if (config->dump_signal)
		atomic_store(&signal_fd, SHUNT_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
	if (listener_fd < 0 && atomic_load(&signal_fd) < 0)
		return;
	err = shunt_thread_start(NULL, STACK_BYTES, serve, NULL);
	if (err) {
		shunt_warn("no thread for dumps of this process: %s", shunt_thread_error_text(err).s);
		return;
	}
	if (atomic_load(&signal_fd) >= 0)
		catch_signal();
}

void shunt_dump_start(void)
{
	/* A second thread need not wait for the first: it only finds no service yet. */
	if (!atomic_load_explicit(&started, memory_order_relaxed) && !atomic_exchange(&started, true))
		start_service();
}
