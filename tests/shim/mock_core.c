/* SPDX-License-Identifier: MIT */
#include "tools/common/libc.h"
#include "algos/algo.h"
#include "algos/algos.h"
#include "transport/rendezvous/bootstrap.h"
#include "comm/comm.h"
#include "comm/observe/dump.h"
#include "comm/observe/marks.h"
#include "base/config.h"
#include "transport/rendezvous/bootstrap_group.h"
#include "base/hash.h"
#include "base/host.h"
#include "base/log.h"
#include "transport/rendezvous/directory.h"
#include "comm/calls/windows.h"
#include "kernels/set.h"
#include "tests/shim/mock_core.h"
#include "tests/support/pause.h"
#include "tests/support/stub.h"

struct shunt_window {
	struct shunt_window *next;
	const void *name;
	void *base;
};

struct shunt_comm {
	struct shunt_comm_desc desc;
	bool forward_only, set_up, aborted;
	struct shunt_window *windows;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrivals_changed = PTHREAD_COND_INITIALIZER;
static char text[1 << 16], copy[1 << 16], last_error[512];
static size_t size;
static atomic_int setup_result, error_result, nalive;

static void log_call(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void log_call(const char *format, ...)
{
	va_list ap;

	pthread_mutex_lock(&lock);
	if (size > sizeof(text) - 256)
		size = 0;
	va_start(ap, format);
	size += vsnprintf(text + size, sizeof(text) - size, format, ap);
	va_end(ap);
	pthread_mutex_unlock(&lock);
}

const char *shunt_mock_log(void)
{
	pthread_mutex_lock(&lock);
	memcpy(copy, text, size);
	copy[size] = 0;
	pthread_mutex_unlock(&lock);
	return copy;
}

void shunt_mock_reset(void)
{
	pthread_mutex_lock(&lock);
	size = 0;
	pthread_mutex_unlock(&lock);
	setup_result = error_result = 0;
}

void shunt_mock_setup_result(int result)
{
	setup_result = result;
}

void shunt_mock_error(int err)
{
	error_result = err;
}

STUB(int, shunt_mock_alive, (void), nalive)

int shunt_mock_teardown(void **state)
{
	if (nalive)
		fprintf(stderr, "%d communicators are left\n", nalive);
	return nalive;
}

/* Rendezvous of the threads of this process: everybody who comes with this key gives bytes and gets all of them. */
struct mock_barrier {
	struct mock_barrier *next;
	struct shunt_id key;
	int nranks, arrived, nleft;
	char *all;
};
static struct mock_barrier *mock_barriers;
static int waiting;

int shunt_mock_waiting(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = waiting;
	pthread_mutex_unlock(&lock);
	return n;
}

static int mock_allgather(
    struct shunt_id key, int rank, int nranks, const void *mine, size_t bytes, void *all, const atomic_int *cancel)
{
	struct timespec deadline;
	struct mock_barrier **at, *m;
	int err = 0;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += 5;
	pthread_mutex_lock(&lock);
	for (at = &mock_barriers; (m = *at) && memcmp(&m->key, &key, sizeof(key)); at = &m->next)
		;
	if (!m) {
		m = *at = calloc(1, sizeof(*m));
		m->key = key;
		m->nranks = nranks;
		m->all = calloc(nranks, bytes + 1);
	}
	if (m->nranks != nranks) {
		err = -EINVAL;
		goto out;
	}
	if (bytes)
		memcpy(m->all + rank * bytes, mine, bytes);
	m->arrived++;
	pthread_cond_broadcast(&arrivals_changed);
	waiting++;
	while (m->arrived < nranks && !err && !(cancel && *cancel)) {
		struct timespec now;

		clock_gettime(CLOCK_REALTIME, &now);
		err = now.tv_sec > deadline.tv_sec ? -ETIMEDOUT : 0;
		now.tv_nsec = now.tv_nsec < 990000000 ? now.tv_nsec + 10000000 : now.tv_nsec;
		pthread_cond_timedwait(&arrivals_changed, &lock, &now);
	}
	waiting--;
	if (!err && m->arrived < nranks)
		err = -ECANCELED;
	if (!err && all && bytes)
		memcpy(all, m->all, nranks * bytes);
	if (!err && ++m->nleft == nranks) {
		for (at = &mock_barriers; *at != m; at = &(*at)->next)
			;
		*at = m->next;
		free(m->all);
		free(m);
	}
out:
	pthread_mutex_unlock(&lock);
	return err;
}

const struct shunt_config *shunt_config(void)
{
	static struct shunt_config config;
	const char *lib = getenv("SHUNT_NCCL_LIB"), *version = getenv("SHUNT_NCCL_VERSION");

	pthread_mutex_lock(&lock);
	config.nccl_lib = lib ? lib : "";
	config.nccl_version = version ? (unsigned)atoi(version) : 22809;
	pthread_mutex_unlock(&lock);
	return &config;
}

/* As the environment says at the moment, so that tests can change it. */
const struct shunt_nccl_env *shunt_nccl_env(void)
{
	static _Thread_local struct shunt_nccl_env env;
	const char *blocking = getenv("NCCL_COMM_BLOCKING"), *ctas = getenv("NCCL_MAX_CTAS");

	env.comm_blocking = blocking ? atoi(blocking) : -1;
	env.max_ctas = ctas ? atoi(ctas) : 0;
	env.cga_cluster_size = env.cta_policy = -1;
	return &env;
}

/* Knows one algorithm. */
const struct shunt_algo *shunt_algo_find(enum shunt_kind kind, const char *name)
{
	static const struct shunt_algo oneshot = { .name = "oneshot" };

	return kind == SHUNT_ALLREDUCE && !strcmp(name, oneshot.name) ? &oneshot : NULL;
}

uint64_t shunt_fnv1a(uint64_t seed, const void *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		seed = (seed ^ ((const uint8_t *)data)[i]) * 0x100000001b3u + 1;
	return seed;
}

static uint8_t host = 1;

void shunt_mock_host(int number)
{
	host = (uint8_t)number;
}

int shunt_host_id(uint8_t out[SHUNT_HOST_BYTES], const void *key, size_t key_bytes)
{
	memset(out, host, SHUNT_HOST_BYTES);
	return 0;
}

static void print(const char *level, const char *fmt, va_list ap)
{
	char line[512];

	vsnprintf(line, sizeof(line), fmt, ap);
	if (*level == 'E' || *level == 'W') {
		pthread_mutex_lock(&lock);
		memcpy(last_error, line, sizeof(line));
		pthread_mutex_unlock(&lock);
		fprintf(stderr, "SHUNT %s %s\n", level, line);
	}
}

#define PRINTER(name, level, ...) \
	void name(__VA_ARGS__ const char *fmt, ...) \
	{ \
		va_list ap; \
		va_start(ap, fmt); \
		print(level, fmt, ap); \
		va_end(ap); \
	}
PRINTER(shunt_warn_again, "AGAIN")
PRINTER(shunt_error, "ERROR")
PRINTER(shunt_warn, "WARN")
PRINTER(shunt_info, "INFO", unsigned subsys, )

void shunt_banner(const char *fmt, ...)
{
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	log_call("banner %s\n", line);
}

NOTHING(shunt_log_hold, (void))
NOTHING(shunt_log_flush, (void))
STUB(const char *, shunt_last_error, (void), last_error)

void shunt_last_error_set(const char *error)
{
	pthread_mutex_lock(&lock);
	snprintf(last_error, sizeof(last_error), "%s", error);
	pthread_mutex_unlock(&lock);
}

void shunt_log_reset(void)
{
	log_call("log reset\n");
}

STUB(const char *, shunt_build, (void), "0.0.0-mock (unknown)")
STUB(const char *, shunt_version, (void), "0.0.0-mock")

int shunt_bootstrap_new_id(uint8_t id[128])
{
	static atomic_uint counter;

	memset(id, 0, 128);
	id[0] = (uint8_t)++counter;
	id[1] = 0xb0;
	return 0;
}

STUB(bool, shunt_bootstrap_id_is_shared, (const uint8_t id[128]), false)
STUB(int, shunt_comm_set_id, (struct shunt_comm * comm, const struct shunt_id *id), 0)

int shunt_bootstrap_join(const uint8_t id[128], int rank, int nranks, const atomic_int *cancel,
    struct shunt_hosts **hosts_p, struct shunt_id *own_p)
{
	*hosts_p = NULL;
	return mock_allgather(shunt_id_derive(id, 128, "bootstrap", 0, 0), rank, nranks, "x", 1, NULL, cancel);
}

struct shunt_id shunt_id_derive(const void *secret, size_t bytes, const char *tag, uint64_t a, uint64_t b)
{
	uint64_t h[2] = { a * 31 + b, b * 1000003 + a };
	struct shunt_id id;

	for (size_t i = 0; i < bytes; i++)
		h[i & 1] = (h[i & 1] ^ ((const uint8_t *)secret)[i]) * 0x100000001b3u;
	for (; *tag; tag++)
		h[0] = (h[0] ^ (uint8_t)*tag) * 0x100000001b3u;
	memcpy(&id, h, sizeof(id));
	return id;
}

/* All ranks are on one host. */
NOTHING(shunt_directory_mark, (uint8_t id[SHUNT_DIRECTORY_ID_BYTES]))
NOTHING(shunt_directory_copy, (uint8_t id[SHUNT_DIRECTORY_ID_BYTES], const struct shunt_directory_tail *tail))
STUB(struct shunt_directory_tail, shunt_directory_tail_of, (const uint8_t id[SHUNT_DIRECTORY_ID_BYTES]),
    (struct shunt_directory_tail){ 0 })
STUB(const struct shunt_directory_tail *, shunt_comm_directory, (const struct shunt_comm *comm), NULL)
STUB(int, shunt_comm_set_hosts, (struct shunt_comm * comm, struct shunt_hosts *hosts), 0)
STUB(const struct shunt_hosts *, shunt_comm_hosts, (const struct shunt_comm *comm), NULL)
NOTHING(shunt_hosts_destroy, (struct shunt_hosts * hosts))
NOTHING(shunt_hosts_select, (struct shunt_hosts * hosts, const int *ranks, int n))

void shunt_hosts_describe(const struct shunt_hosts *hosts, char *text, size_t bytes)
{
	*text = '\0';
}

int shunt_comm_create(const struct shunt_comm_desc *desc, struct shunt_comm **comm_p)
{
	struct shunt_comm *comm = calloc(1, sizeof(*comm));

	comm->desc = *desc;
	comm->forward_only = desc->forward_reason;
	nalive++;
	log_call("create %d/%d rank %d/%d device %d ctas %d id %02x%02x%s%s\n", desc->member, desc->nmembers,
	    desc->rank, desc->nranks, desc->device, desc->max_ctas, desc->id.b[0], desc->id.b[1],
	    desc->forward_reason ? " reason " : "", desc->forward_reason ? desc->forward_reason : "");
	*comm_p = comm;
	return 0;
}

void shunt_comm_deny_nvls(struct shunt_comm *comm)
{
	(void)comm;
	log_call("deny_nvls\n");
}

void shunt_comm_set_rank(struct shunt_comm *comm, int rank, int nranks, int device)
{
	comm->desc.rank = rank;
	comm->desc.nranks = nranks;
	comm->desc.device = device;
	log_call("set_rank %d/%d device %d\n", rank, nranks, device);
}

/* Windows: noted, and known by name; their memory lives as long as the communicator. */
struct shunt_window *shunt_symmem_add(struct shunt_comm *comm, void *base, size_t bytes, bool symmetric)
{
	struct shunt_window *w = calloc(1, sizeof(*w));

	log_call("window add %zu%s\n", bytes, symmetric ? " symmetric" : "");
	w->name = w;
	w->base = base;
	pthread_mutex_lock(&lock);
	w->next = comm->windows;
	comm->windows = w;
	pthread_mutex_unlock(&lock);
	return w;
}

static struct shunt_window *window_find(struct shunt_comm *comm, const void *name)
{
	struct shunt_window *w;

	pthread_mutex_lock(&lock);
	for (w = comm->windows; w && (!w->base || w->name != name); w = w->next)
		;
	pthread_mutex_unlock(&lock);
	return w;
}

void shunt_symmem_set_name(struct shunt_comm *comm, const struct shunt_window *window, const void *name)
{
	log_call("window name %d\n", name != NULL);
	((struct shunt_window *)(uintptr_t)window)->name = name;
}

bool shunt_symmem_remove(struct shunt_comm *comm, const void *name)
{
	struct shunt_window *w = name ? window_find(comm, name) : NULL;

	if (w) {
		log_call("window remove\n");
		w->base = NULL;
	}
	return w;
}

void shunt_symmem_remove_unnamed(struct shunt_comm *comm)
{
	log_call("window remove unnamed\n");
}

bool shunt_symmem_base(struct shunt_comm *comm, const void *name, void **base_p)
{
	struct shunt_window *w = window_find(comm, name);

	if (w)
		*base_p = w->base;
	return w;
}

void shunt_symmem_forget(const void *memory)
{
	log_call("windows forget\n");
}

void shunt_comm_destroy(struct shunt_comm *comm)
{
	struct shunt_window *w;

	if (!comm)
		return;
	while ((w = comm->windows)) {
		comm->windows = w->next;
		free(w);
	}
	log_call("destroy\n");
	nalive--;
	free(comm);
}

void shunt_comm_abort(struct shunt_comm *comm)
{
	log_call("abort\n");
	__atomic_store_n(&comm->aborted, true, __ATOMIC_RELEASE);
}

static enum shunt_reason reason_of(const struct shunt_comm *comm, const struct shunt_coll *coll)
{
	return comm->forward_only         ? SHUNT_REASON_COMM :
	    coll->kind != SHUNT_ALLREDUCE ? SHUNT_REASON_KIND :
	    comm->desc.nranks == 1        ? (comm->desc.takes_all ? SHUNT_REASON_NONE : SHUNT_REASON_ONE_RANK) :
	    coll->count > 1000            ? SHUNT_REASON_SIZE :
	                                    SHUNT_REASON_NONE;
}

STUB(const char *, shunt_comm_reason, (const struct shunt_comm *comm, enum shunt_reason reason),
    shunt_reason_name(reason))

static bool needs_setup(const struct shunt_comm *comm)
{
	return !comm->set_up && !comm->forward_only && comm->desc.nranks > 1;
}

bool shunt_comm_decide(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	static const struct shunt_algo algo;
	enum shunt_reason reason = reason_of(comm, coll);

	*decision = (struct shunt_decision){ .algo = reason ? NULL : &algo,
		.reason = reason,
		.flags = (uint32_t)coll->count,
		.path = reason ? NULL : "mock",
		.need = !reason && needs_setup(comm) ? SHUNT_NEED_SETUP : SHUNT_NEED_NOTHING,
		.settled = !needs_setup(comm) };
	return decision->algo;
}

STUB(bool, shunt_comm_needs_round, (const struct shunt_comm *comm, const struct shunt_decision *decision),
    decision->need)

/* Ranks that are threads of this process have to be here together, unless the test says how it ends. */
int shunt_comm_prepare(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	int err = 0;

	if (!shunt_comm_decide(comm, coll, decision) || !decision->need)
		return 0;

	log_call("setup %d\n", comm->desc.rank);
	if (getenv("SHUNT_MOCK_RENDEZVOUS"))
		err = mock_allgather(comm->desc.id, comm->desc.rank, comm->desc.nranks, "x", 1, NULL, NULL);
	if (!err && setup_result < 0)
		err = setup_result;
	comm->set_up = true;
	comm->forward_only = setup_result == 1;
	return err;
}

int shunt_comm_run(struct shunt_comm *comm, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	int err;

	if (__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE))
		return -ECANCELED;
	err = shunt_comm_prepare(comm, coll, decision);
	if (err)
		return err;
	if (!shunt_comm_decide(comm, coll, decision)) {
		if (coll->kind == SHUNT_ALLREDUCE)
			log_call("declined %zu %s\n", coll->count, shunt_reason_name(decision->reason));
		else
			shunt_comm_count_forward(comm, coll, decision->reason);
		return -EOPNOTSUPP;
	}
	log_call("run %zu %d", coll->count, (int)coll->redop);
	if (coll->redop == SHUNT_PREMUL)
		log_call(" scalar %llx%s", (unsigned long long)coll->scalar, coll->scalar_on_device ? " device" : "");
	if (coll->algo)
		log_call(" %s %s", coll->only_algo ? "only" : "rather", coll->algo->name);
	if (coll->cta_policy)
		log_call(" policy %d", coll->cta_policy);
	if (coll->launched)
		log_call(" event");
	log_call("\n");
	if (comm->desc.nranks == 1 && coll->send != coll->recv)
		memcpy(coll->recv, coll->send, coll->count * shunt_dtype_bytes[coll->dtype]);
	return 0;
}

int shunt_comm_fork_group(struct shunt_comm *comm, const struct shunt_coll *const *calls, size_t n, bool *forked_p)
{
	*forked_p = false;
	return 0;
}

NOTHING(shunt_comm_join_later, (struct shunt_comm * comm))
STUB(int, shunt_comm_join_due, (struct shunt_comm * comm), 0)

int shunt_comm_run_group(struct shunt_comm *comm, const struct shunt_coll *const *calls,
    struct shunt_decision *decisions, size_t n, bool forked)
{
	int err = 0;

	for (size_t i = 0; i < n && !err; i++) {
		if (decisions[i].algo && decisions[i].flags != (uint32_t)calls[i]->count)
			log_call("the decision of another call\n");
		err = shunt_comm_run(comm, calls[i], &decisions[i]);
	}
	return err;
}

NOTHING(shunt_comm_phase, (struct shunt_comm * comm, const char *phase))
NOTHING(shunt_marks_settle, (bool has_launched))
NOTHING(shunt_comm_note_function, (struct shunt_comm * comm))
NOTHING(shunt_comm_nccl_failed, (struct shunt_comm * comm, int result))

void shunt_comm_count_forward(struct shunt_comm *comm, const struct shunt_coll *coll, enum shunt_reason reason)
{
	log_call("forward %s %zu %s\n", shunt_kind_name(coll->kind), coll->count * shunt_dtype_bytes[coll->dtype],
	    shunt_reason_name(reason));
}

STUB(int, shunt_comm_error, (struct shunt_comm * comm), error_result)
STUB(int, shunt_comm_rank, (const struct shunt_comm *comm), comm->desc.rank)
STUB(int, shunt_comm_nranks, (const struct shunt_comm *comm), comm->desc.nranks)
STUB(int, shunt_comm_device, (const struct shunt_comm *comm), comm->desc.device)
STUB(int, shunt_host_address_listen, (struct shunt_host_address * at, int *fd),
    -EADDRNOTAVAIL) /* all ranks are threads */

int shunt_bootstrap_allgather(
    const struct shunt_bootstrap_group *c, const void *mine, size_t bytes, void *all, struct shunt_hosts **hosts_p)
{
	*hosts_p = NULL;
	return mock_allgather(shunt_id_derive(&c->id, sizeof(c->id), "bootstrap_group", 0, 0), c->rank, c->nranks, mine,
	    bytes, all, c->cancel);
}

static atomic_int kernel_runs;

void shunt_mock_kernel_runs(int runs)
{
	kernel_runs = runs;
}

int shunt_comm_quiesce(struct shunt_comm *comm)
{
	bool aborted = __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE);

	log_call("quiet\n");
	while (kernel_runs && !__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE))
		pause_us(PAUSE_POLL, 100);
	return !aborted && __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE) ? -ECANCELED : 0;
}

STUB(size_t, shunt_comm_memory, (struct shunt_comm * comm), 1000)
STUB(int, shunt_comm_set_numerics, (struct shunt_comm * comm, bool e4m3b15, int accumulate), 0)
STUB(int, shunt_comm_run_plan, (struct shunt_comm * comm, const char *name, struct shunt_plan_call *call), -ENOSYS)
STUB(int, shunt_dump_file, (const char *dir, const char *reason, char *path, size_t bytes), -ENOSYS)

void shunt_comm_info(struct shunt_comm *comm, struct shunt_comm_info *info)
{
	*info = (struct shunt_comm_info){ .size = info->size, .state = "untouched" };
}

STUB(size_t, shunt_comm_counters, (const struct shunt_comm *comm, struct shunt_counter *rows, size_t cap), 0)

static _Thread_local int device_now;

static int get_device(int *device_p)
{
	*device_p = device_now;
	return 0;
}

static int set_device(int device)
{
	device_now = device;
	return 0;
}

static int count_devices(int *count_p)
{
	*count_p = 8;
	return 0;
}

static int device_info(int device, struct shunt_gpu_info *info_p)
{
	*info_p = (struct shunt_gpu_info){ .name = "mock device" };
	return 0;
}

static int mem_alloc(int device, size_t bytes, void **ptr_p)
{
	*ptr_p = malloc(bytes);
	return *ptr_p ? 0 : -ENOMEM;
}

static int mem_free(void *ptr)
{
	free(ptr);
	return 0;
}

static int copy_now(int device, void *dst, const void *src, size_t bytes, void *stream)
{
	memcpy(dst, src, bytes);
	return 0;
}

/* It knows no memory. */
STUB(static int, mem_range, (const void *ptr, void **base_p, size_t *bytes_p), -ENOENT)

const struct shunt_kernel_set shunt_kernels;

const struct shunt_gpu_ops *shunt_gpu_open(const struct shunt_kernel_set *kernels)
{
	static const struct shunt_gpu_ops ops = { .name = "mock",
		.device_get = get_device,
		.device_set = set_device,
		.device_count = count_devices,
		.device_info = device_info,
		.mem_alloc = mem_alloc,
		.mem_alloc_shared = mem_alloc,
		.mem_free = mem_free,
		.mem_range = mem_range,
		.copy_async = copy_now };

	return &ops;
}

void shunt_gpu_prefer_cuda(void)
{
	log_call("prefer cuda\n");
}
