/* SPDX-License-Identifier: MIT */
/*
 * nvls FAKE_NCCL: who does all-reduces in windows where NCCL may use NVLink multicast, by the whole library between
 * fakes of the CUDA driver and of NCCL. Each combination of NCCL's version and NCCL_NVLS_ENABLE is a process of its
 * own, which this one starts; in it, for 3 to 8 ranks, one rank at a time has something of its own: a device without
 * multicast, an older device, another rank's device, an nvlsHostMode, an NCCL that denies it. All ranks must do alike,
 * as the rule says, and a child of the ranks without the one that is apart has the bit again.
 *
 * nvls blocks: prints the launches of all-reduce and all-gather as the fake driver sees them. The test compares those
 * under vLLM's variables with those without.
 *
 * nvls image: registers a plug-in whose image the driver has nothing in for this GPU, where a communicator uses it.
 */
#include "tools/common/libc.h"
#include "device/cuda/cuda_abi.h"
#include "kernels/kargs.h"
#include "shim/nccl/abi.h"
#include "shunt/plugin.h"
#include "shunt/shunt.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/plugin_table.h"

#define KB ((size_t)1 << 10)
#define MB ((size_t)1 << 20)

enum { NRANKS = 8, BARE = 8, AMPERE = 9, NDEVICES = 10 };
enum apart { NOBODY, BARE_DEVICE, OLD_DEVICE, SAME_DEVICE, MODE_1, MODE_2, MODE_3, MODE_ALL, DENIED, NAPART };
static const char *const apart_names[] = { "nobody", "a device without multicast", "an older device",
	"another's device", "nvlsHostMode 1", "nvlsHostMode 2", "nvlsHostMode 3", "all of nvlsHostMode",
	"an NCCL that denies it" };

static int (*nccl_launches)(void);
static void (*no_multimem)(unsigned ranks);
static char *in, *out; /* addresses only: the fakes touch no data */
static int failures;

/* Counts the warps of a launch as begun and ended, so that a communicator's end need not wait for them. */
static void run_kernel(const void *args, unsigned warps)
{
	const struct shunt_kargs *k = args;
	struct shunt_ctrl *ctrl = (struct shunt_ctrl *)(uintptr_t)k->peer[k->rank];

	ctrl->progress.begun += warps;
	ctrl->progress.ended += warps;
}

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "not ok: %s\n", what);
	failures++;
}

static void must(ncclResult_t result, const char *what)
{
	if (result == ncclSuccess)
		return;
	fprintf(stderr, "%s failed with %d\n", what, (int)result);
	exit(1);
}

/* The rule of docs/tuning.md, once more. */
static size_t nccl_from(int nranks)
{
	return nranks >= 6 ? 512 * KB : nranks == 5 ? 1 * MB : 8 * MB;
}

static ncclConfig_t config_of(int mode)
{
	ncclConfig_t c;

	memset(&c, 0, sizeof(c));
	for (int *p = &c.blocking; (char *)p < (char *)(&c + 1); p++)
		*p = NCCL_CONFIG_UNDEF_INT;
	c.size = sizeof(c);
	c.magic = SHUNT_NCCL_CONFIG_MAGIC;
	c.version = 23203;
	c.netName = c.commName = NULL;
	c.nvlsHostMode = mode;
	return c;
}

static void comms_create(ncclComm_t *comms, int n, int rank, enum apart apart)
{
	static const int modes[NAPART] = { [MODE_1] = 1, [MODE_2] = 2, [MODE_3] = 3, [MODE_ALL] = 0x7fffffff };
	int devices[NRANKS];
	ncclUniqueId id;

	for (int r = 0; r < n; r++)
		devices[r] = r;
	devices[rank] = apart == BARE_DEVICE ? BARE :
	    apart == OLD_DEVICE              ? AMPERE :
	    apart == SAME_DEVICE             ? (rank + 1) % n :
	                                       rank;
	if (no_multimem)
		no_multimem(apart == DENIED ? 1u << rank : 0);
	if (!modes[apart]) {
		must(ncclCommInitAll(comms, n, devices), "ncclCommInitAll");
		return;
	}
	must(ncclGetUniqueId(&id), "ncclGetUniqueId");
	must(ncclGroupStart(), "ncclGroupStart");
	for (int r = 0; r < n; r++) {
		ncclConfig_t c = config_of(r == rank ? modes[apart] : NCCL_CONFIG_UNDEF_INT);

		must(ncclCommInitRankConfig(&comms[r], n, id, r, &c), "ncclCommInitRankConfig");
	}
	must(ncclGroupEnd(), "ncclGroupEnd");
}

/* One all-reduce of all ranks. True: Shunt did it; all ranks must have done alike. */
static bool reduced_by_shunt(ncclComm_t *comms, int n, size_t bytes)
{
	long ours = fake_cuda.launch.count;
	int theirs = nccl_launches ? nccl_launches() : 0;

	must(ncclGroupStart(), "ncclGroupStart");
	for (int r = 0; r < n; r++)
		must(ncclAllReduce(in, out, bytes / 2, ncclFloat16, ncclSum, comms[r], NULL), "ncclAllReduce");
	must(ncclGroupEnd(), "ncclGroupEnd");
	ours = fake_cuda.launch.count - ours;
	theirs = (nccl_launches ? nccl_launches() : 0) - theirs;
	check((ours == n && !theirs) || (!ours && theirs == n), "ranks part: some calls are Shunt's, some NCCL's");
	return ours;
}

/* bit: what the rule says of these ranks. */
static void check_comms(ncclComm_t *comms, int n, bool bit, const char *what)
{
	size_t from = nccl_from(n);
	char text[256];
	ncclWindow_t windows[NRANKS][2];

	snprintf(text, sizeof(text), "%s: plain buffers are Shunt's", what);
	check(reduced_by_shunt(comms, n, 1 * KB) && reduced_by_shunt(comms, n, 16 * MB), text);
	for (int r = 0; r < n; r++) {
		must(
		    ncclCommWindowRegister(comms[r], in, 16 * MB, &windows[r][0], NCCL_WIN_COLL_SYMMETRIC), "a window");
		must(ncclCommWindowRegister(comms[r], out, 16 * MB, &windows[r][1], NCCL_WIN_COLL_SYMMETRIC),
		    "a window");
	}
	snprintf(text, sizeof(text), "%s: in windows, below the size", what);
	check(reduced_by_shunt(comms, n, from - 2), text);
	snprintf(text, sizeof(text), "%s: in windows, from the size on", what);
	check(reduced_by_shunt(comms, n, from) == !bit && reduced_by_shunt(comms, n, 16 * MB) == !bit, text);
	for (int r = 0; r < n; r++)
		for (int i = 0; i < 2; i++)
			must(ncclCommWindowDeregister(comms[r], windows[r][i]), "ncclCommWindowDeregister");
}

/* Halves of the ranks: those of even numbers, and those of odd ones. rank: the one that is apart. */
static void check_children(ncclComm_t *comms, int n, int rank, bool apart_counts, bool bit, const char *what)
{
	ncclComm_t children[NRANKS], half[NRANKS];

	must(ncclGroupStart(), "ncclGroupStart");
	for (int r = 0; r < n; r++)
		must(ncclCommSplit(comms[r], r % 2, r, &children[r], NULL), "ncclCommSplit");
	must(ncclGroupEnd(), "ncclGroupEnd");
	for (int color = 0; color < 2; color++) {
		char text[200];

		for (int r = 0; r < n / 2; r++)
			half[r] = children[2 * r + color];
		snprintf(text, sizeof(text), "%s, half %d", what, color);
		check_comms(half, n / 2, bit && !(apart_counts && rank % 2 == color), text);
	}
	for (int r = 0; r < n; r++)
		must(ncclCommDestroy(children[r]), "ncclCommDestroy");
}

/* step: 1: every number of ranks; 3: some. */
static int check_all(int step)
{
	const char *e = getenv("NCCL_NVLS_ENABLE");
	bool deterministic = getenv("SHUNT_DETERMINISTIC"), alone = !strcmp(getenv("SHUNT_NCCL_LIB"), "none");
	int version = alone ? 0 : atoi(getenv("FAKE_NCCL_VERSION"));
	bool may = version >= 22700 && !(e && !strcmp(e, "0")) && !deterministic;

	for (int n = NRANKS; n >= 3; n -= step)
		for (int a = 0; a < NAPART; a++) {
			int rank = (a + n) % n;
			bool counts = a == BARE_DEVICE || a == OLD_DEVICE || a == SAME_DEVICE ||
			    ((a == MODE_2 || a == MODE_3 || a == MODE_ALL) && version >= 23200) ||
			    (a == DENIED && version >= 22902);
			ncclComm_t comms[NRANKS];
			char what[160];

			if (alone && a >= MODE_1) /* ranks of one process need a thread each for that */
				continue;
			snprintf(what, sizeof(what), "NCCL %d, NCCL_NVLS_ENABLE %s, %d ranks, rank %d has %s", version,
			    e ? e : "not set", n, rank, apart_names[a]);
			comms_create(comms, n, rank, (enum apart)a);
			check_comms(comms, n, may && !counts, what);
			/* What NCCL says of a child, and ranks that share a device, are other ranks' matter there. */
			if (n % 2 == 0 && n > 4 && !alone && (a == NOBODY || a == BARE_DEVICE || a == OLD_DEVICE))
				check_children(comms, n, rank, counts, may, what);
			for (int r = 0; r < n; r++)
				must(ncclCommDestroy(comms[r]), "ncclCommDestroy");
		}
	return failures != 0;
}

/* Prints who launches what for two collectives; all ranks must launch alike. */
static int print_blocks(void)
{
	ncclComm_t comms[4];

	comms_create(comms, 4, 0, NOBODY);
	for (size_t bytes = 1 * KB; bytes <= 64 * MB; bytes *= 4)
		for (int gather = 0; gather < 2; gather++) {
			long before = fake_cuda.launch.count;

			must(ncclGroupStart(), "ncclGroupStart");
			for (int r = 0; r < 4; r++)
				must(gather ? ncclAllGather(in, out, bytes / 8, ncclFloat16, comms[r], NULL) :
				              ncclAllReduce(in, out, bytes / 2, ncclFloat16, ncclSum, comms[r], NULL),
				    "the call");
			must(ncclGroupEnd(), "ncclGroupEnd");
			if (fake_cuda.launch.count == before)
				printf("%s %zu nccl\n", gather ? "allgather" : "allreduce", bytes);
			else
				printf("%s %zu %s %u x %u\n", gather ? "allgather" : "allreduce", bytes,
				    fake_cuda.launch.kernel, fake_cuda.launch.blocks, fake_cuda.launch.threads);
		}
	return 0;
}

/* One line says why, and the plug-in is not there. */
static int register_alien(void)
{
	static const char cubin[64] = "\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\2\0\276\0";
	static const char text[] = ".version 9.0\n.target sm_90\n";
	struct shunt_plugin alien = plugin_table("alien");
	ncclComm_t comms[4];
	char why[256] = "";

	alien.image = cubin;
	alien.image_bytes = sizeof(cubin);
	comms_create(comms, 4, 0, NOBODY);
	check(reduced_by_shunt(comms, 4, 1 * KB), "the device is in use");
	fake_cuda.image_result = SHUNT_CU_NO_BINARY_FOR_GPU;
	check(shunt_plugin_register(&alien, why, sizeof(why)) == -ENOEXEC, "an image for no GPU here is refused");
	check(!strcmp(why, "plug-in alien: the image, alien, on sm_90: CUDA_ERROR_OTHER (209)"), why);
	check(shunt_plugin_unregister("alien") == -ENOENT, "what was refused is not registered");
	/* PTX without a NUL, by which CUDA knows its end. */
	alien.image = text;
	alien.image_bytes = sizeof(text) - 7;
	check(shunt_plugin_register(&alien, why, sizeof(why)) == -ENOEXEC && strstr(why, "on sm_90"), why);
	check(fake_cuda.image_text == alien.image_bytes, "the driver gets no more of the text than there is");
	return failures != 0;
}

static int start(const char *self, const char *lib, const char *mode, const char *const *environment, int out_fd)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		setenv("SHUNT_NCCL_LIB", lib, 1);
		for (; *environment; environment++)
			putenv((char *)(uintptr_t)*environment);
		if (out_fd >= 0)
			dup2(out_fd, 1);
		execl(self, self, mode, lib, (char *)NULL);
		_exit(127);
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

static int start_all(const char *self, const char *lib)
{
	static const char *const versions[] = { "22605", "22809", "22907", "23007", "23102", "23203" },
	                         *const enables[] = { "NCCL_NVLS_ENABLE=", "NCCL_NVLS_ENABLE=0", "NCCL_NVLS_ENABLE=1",
		                         "NCCL_NVLS_ENABLE=2" };
	static const char *const deterministic[] = { "FAKE_NCCL_VERSION=23203", "SHUNT_DETERMINISTIC=1", NULL },
	                         *const alone[] = { "FAKE_NCCL_VERSION=23203", NULL };
	int bad = 0;

	for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++)
		for (size_t e = 0; e < sizeof(enables) / sizeof(enables[0]); e++) {
			char version[64];
			const char *both[] = { version, enables[e], NULL };

			snprintf(version, sizeof(version), "FAKE_NCCL_VERSION=%s", versions[v]);
			/* Every value with the newest, and all ranks with the newest and the default. */
			if (v + 1 == sizeof(versions) / sizeof(versions[0]) || e == 3)
				bad += start(self, lib, v == 5 && !e ? "check" : "some", both, -1);
		}
	bad += start(self, lib, "some", deterministic, -1);
	bad += start(self, "none", "some", alone, -1);
	bad += start(self, lib, "image", alone, -1);
	return bad;
}

/* What vLLM exports (VLLM_BATCH_INVARIANT) takes nothing away under SHUNT_DETERMINISTIC. */
static int compare_blocks(const char *self, const char *lib)
{
	static const char *const plain[] = { "SHUNT_DETERMINISTIC=1", NULL },
	                         *const vllm[] = { "SHUNT_DETERMINISTIC=1", "NCCL_ALGO=ring,tree;allreduce:tree",
		                         "NCCL_PROTO=Simple", "NCCL_MIN_NCHANNELS=1", "NCCL_MAX_NCHANNELS=1",
		                         "NCCL_NTHREADS=1", "NCCL_NVLS_ENABLE=0", NULL };
	FILE *a = tmpfile(), *b = tmpfile();
	char x[256], y[256];
	int lines = 0, ours = 0, many = 0;

	if (!a || !b || start(self, lib, "blocks", plain, fileno(a)) || start(self, lib, "blocks", vllm, fileno(b)))
		return 1;
	rewind(a);
	rewind(b);
	while (fgets(x, sizeof(x), a)) {
		unsigned blocks = 0;

		if (!fgets(y, sizeof(y), b))
			*y = '\0';
		if (strcmp(x, y)) {
			fprintf(
			    stderr, "not ok: %.*s without vLLM's variables, with them %s", (int)strcspn(x, "\n"), x, y);
			return 1;
		}
		lines++;
		if (!strstr(x, " nccl\n")) {
			ours++;
			many += sscanf(x, "%*s %*s %*s %u", &blocks) == 1 && blocks > 8;
		}
		/* Sums are ours at every size. */
		check(strncmp(x, "allreduce", 9) || !strstr(x, " nccl\n"), x);
	}
	check(lines == 18 && ours > 12 && many > 6, "most calls are Shunt's, and the large ones in many blocks");
	return failures;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	void *fake;

	if (argc == 2)
		return start_all(argv[0], argv[1]) + compare_blocks(argv[0], argv[1]) ? 1 : 0;
	if (argc != 3) {
		fprintf(stderr, "usage: nvls FAKE_NCCL\n");
		return 2;
	}
	in = mmap(NULL, 256 * MB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (in == MAP_FAILED)
		return 1;
	out = in + 128 * MB;
	fake_cuda.kernel = run_kernel;
	fake_cuda.devices = NDEVICES;
	fake_cuda.untouched = true; /* nobody reads results */
	fake_cuda.multicast = ((1u << NDEVICES) - 1) & ~(1u << BARE);
	fake_cuda.ampere = 1u << AMPERE;
	/* The same file as the library's, and so the same copy. */
	if (strcmp(argv[2], "none")) {
		int version;

		must(ncclGetVersion(&version), "ncclGetVersion");
		fake = dlopen(argv[2], RTLD_NOW | RTLD_NOLOAD);
		if (!fake)
			return 1;
		*(void **)&nccl_launches = dlsym(fake, "fake_nccl_launches");
		*(void **)&no_multimem = dlsym(fake, "fake_nccl_no_multimem");
		if (!nccl_launches || !no_multimem)
			return 1;
	}
	if (!strcmp(mode, "image"))
		return register_alien();
	return strcmp(mode, "blocks") ? check_all(strcmp(mode, "check") ? 3 : 1) : print_blocks();
}
