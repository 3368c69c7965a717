/* SPDX-License-Identifier: MIT */
/*
 * All ranks decide alike, by enumeration. Communicators that agree on everything that the set-up agrees on, and differ
 * in all that a rank has for itself, decide the same call, and every decision must be the same.
 *
 * Enumerated are collectives, types and operators, and for each the sizes at which a table, a rule, a plan or a window
 * begins or ends, one element less and one more, no element, one, and sizes beyond all memory; under 1 to 8 ranks, with
 * a real NCCL (with NVLink multicast and without it) and without one, determinism, CTAPolicy zero, a tuning file, forms
 * of SHUNT_ALGO, plans (with and without the promise of SHUNT_PLAN_SAME_PLACE, a selector, plans that are prepared or
 * refused) and windows. The full product of types and operators comes with every 29th setting, three types and two
 * operators with the others.
 *
 * That the enumeration can fail is shown by faults: a selection that looks at one of the values of a rank's own, by way
 * of functions that the linker puts in place of the selection's.
 */
#include "algos/algos.h"
#include "algos/select/tuning.h"
#include "comm/core/communicator.h"
#include "plan/exec/exec.h"
#include "plan/plan_registry.h"
#include "tests/algos/sel.h"
#include "tests/support/unit.h"

#define KB ((uint64_t)1 << 10)
#define MB ((uint64_t)1 << 20)

/* What a rank has for itself, each in half of the slots and no two in the same half. EARLIER: from earlier calls. */
enum own { ALIGN = 1, PLACE, CAPTURE, GRAPHS, STREAM, FACTOR, EARLIER, NOWN };
enum { SLOTS = 8, MAX_SIZES = 160, EXECS = 64 };

/* A rank that decides. There are always 8, so that each value of a rank's own meets each rank. */
struct slot {
	struct shunt_comm comm;
	struct shunt_order_capture capture;
	struct shunt_comm_exec execs[EXECS];
	size_t nexecs;
	int i;
};

enum plans { NO_PLANS, PLANS, SAME_PLACE_IN, SAME_PLACE_OUT, SELECTOR, PREPARED, NPLANS };
enum windows { NO_WINDOWS, ALL_IN_WINDOWS, OUTPUT_IN_WINDOW, NWINDOWS };

struct setting {
	int nranks;
	bool takes_all, sim, deterministic, no_sms, file, nvls;
	enum plans plans;
	enum windows windows;
	const char *rules;
};

static struct slot slots[SLOTS];
static struct shunt_tuning *files[SHUNT_MAX_RANKS + 1];
static const struct shunt_gpu_ops no_gpu;
static struct {
	unsigned long settings, calls, decisions, early, forwarded, plans, windows;
	unsigned long differences;
	char first[400]; /* ... in words */
} seen;

/* ---- faults ---- */

static enum { SOUND, BY_RANK = NOWN, BY_DEVICE, BY_SIDE, NFAULTS } fault; /* or a value of enum own */
static const struct slot *now;
static const struct shunt_coll *call_now;

static bool fault_is_seen(void)
{
	const struct shunt_coll *c = call_now;

	switch ((int)fault) {
	case ALIGN:
		return ((uintptr_t)c->send | (uintptr_t)c->recv) & 15;
	case PLACE:
		return c->send == c->recv;
	case CAPTURE:
		return now->comm.order.current;
	case GRAPHS:
		return now->comm.order.account == SHUNT_ACCOUNT_GRAPHS;
	case STREAM:
		return c->stream;
	case FACTOR:
		return c->scalar & 1;
	case EARLIER:
		return now->comm.side_stream;
	case BY_RANK:
		return now->comm.rank;
	case BY_DEVICE:
		return now->comm.device > 2;
	case BY_SIDE:
		return c->kind == SHUNT_RECV;
	default:
		return false;
	}
}

bool __real_shunt_select(const struct shunt_sel *sel, const struct shunt_coll *coll, struct shunt_decision *decision);
bool __wrap_shunt_select(const struct shunt_sel *sel, const struct shunt_coll *coll, struct shunt_decision *decision);
enum shunt_plan_choice __real_shunt_plan_set_choose(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const struct shunt_plan **plan_p);
enum shunt_plan_choice __wrap_shunt_plan_set_choose(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const struct shunt_plan **plan_p);

bool __wrap_shunt_select(const struct shunt_sel *sel, const struct shunt_coll *coll, struct shunt_decision *decision)
{
	bool taken = __real_shunt_select(sel, coll, decision);

	if (taken && fault_is_seen()) {
		decision->algo = NULL;
		decision->reason = SHUNT_REASON_SIZE;
		return false;
	}
	return taken;
}

enum shunt_plan_choice __wrap_shunt_plan_set_choose(
    const struct shunt_plan_set *set, const struct shunt_plan_query *call, const struct shunt_plan **plan_p)
{
	enum shunt_plan_choice choice = __real_shunt_plan_set_choose(set, call, plan_p);

	return choice == SHUNT_PLAN_CHOICE_PLAN && fault_is_seen() ? SHUNT_PLAN_CHOICE_NATIVE : choice;
}

/* ---- ranks ---- */

/* The bit of a slot's number that one value of a rank's own has, as a parity: no two values have the same halves. */
static bool has(const struct slot *s, enum own own)
{
	return __builtin_parity((unsigned)s->i & (unsigned)own);
}

static const char *select_by_size(void *arg, const struct shunt_plan_request *request)
{
	/* Not all collectives have each of these. */
	static const char *const answers[] = { "nccl", "native", NULL, "twoshot@8x256", "direct", "simple@4",
		"nonsense" };
	const char *answer = answers[request->bytes % 6];

	return answer || !request->nplans ? answer : request->plans[request->nplans - 1];
}

static struct shunt_sel_key key_of(const struct setting *t)
{
	struct shunt_sel_key key = { .topology = ONE_ISLAND,
		.nranks = t->nranks,
		.takes_all = t->takes_all,
		.deterministic = t->deterministic,
		.no_sms = t->no_sms,
		.nvls = t->nvls,
		.sim = t->sim,
		.cc = t->sim ? 0 : 90,
		.sms = t->sim ? 0 : 132,
		.tma = !t->sim };

	key.tuning = t->file ? files[t->nranks] : shunt_tuning_builtin(t->sim, key.cc, t->nranks);
	return key;
}

/* Some plans have memory for small messages, and are refused for large ones, as in a communicator that ran calls. */
static void prepare_plans(struct slot *s)
{
	const struct shunt_plan *plan;
	struct shunt_plan_exec_config config = {
		.gpu = &no_gpu, .ranks = shunt_comm_ranks(&s->comm, 0), .device = s->comm.device
	};

	for (size_t i = 0; (plan = shunt_plan_set_at(s->comm.plans.set, i)); i++) {
		struct shunt_comm_exec *e = &s->execs[s->nexecs];

		if (i % 3 == 2)
			continue;
		assert_true(s->nexecs++ < EXECS);
		*e = (struct shunt_comm_exec){ .next = s->comm.plans.execs,
			.plan = plan,
			.name = plan->name,
			.max_bytes = 3 * MB,
			.refused_from = i % 3 ? 64 * MB : UINT64_MAX };
		assert_int_equal(shunt_plan_exec_create(&config, (struct shunt_plan *)(uintptr_t)plan, &e->exec), 0);
		s->comm.plans.execs = e;
	}
}

static char *window_of(const struct slot *s)
{
	return (char *)((uintptr_t)(s->i + 1) << 48); /* addresses only: nothing lies there */
}

static void slot_open(struct slot *s, int i, const struct setting *t)
{
	struct shunt_comm *c = &s->comm;
	static char something;

	memset(s, 0, sizeof(*s));
	s->i = i;
	atomic_init(&c->version, 1);
	atomic_init(&c->life.state, COMM_READY);
	c->nranks = t->nranks;
	c->sel_key = key_of(t);
	c->rank = i % t->nranks;
	c->member = 8 - i;
	c->device = i;
	c->gpu = &no_gpu;
	c->no_sms = t->no_sms || i % 2;
	c->order.current = has(s, CAPTURE) ? &s->capture : NULL;
	c->order.account = has(s, GRAPHS) ? SHUNT_ACCOUNT_GRAPHS : SHUNT_ACCOUNT_EXACT;
	c->order.warps = (uint64_t)i * 100;
	c->side_stream = has(s, EARLIER) ? &something : NULL;
	shunt_topology_join(&c->topology, c->nranks, c->rank);
	shunt_comm_fill_early_key(c);
	shunt_symmem_init(&c->symmem);
	shunt_answers_init(&c->plans.answers);
	if (t->windows)
		assert_non_null(shunt_symmem_add(c, window_of(s), (uint64_t)1 << 47, true));
	if (t->plans)
		c->plans.set = shunt_plan_set_get(t->nranks, t->nranks);
	if (t->plans == PREPARED)
		prepare_plans(s);
}

static void slot_close(struct slot *s)
{
	for (size_t i = 0; i < s->nexecs; i++)
		shunt_plan_exec_destroy(s->execs[i].exec);
	shunt_plan_set_free(s->comm.plans.set);
	shunt_symmem_finish(&s->comm);
	shunt_answers_finish(&s->comm.plans.answers);
}

/* The slot's view of the call: what all ranks pass alike, and what each has for itself. */
static struct shunt_coll call_of(const struct slot *s, const struct shunt_coll *shared, const struct setting *t)
{
	struct shunt_coll c = *shared;
	uint64_t part = c.count * shunt_dtype_bytes[c.dtype] * (uint64_t)s->comm.rank;
	uintptr_t at = ((uintptr_t)(s->i + 1) << 32) + (has(s, ALIGN) ? shunt_dtype_bytes[c.dtype] : 0),
	          to = at + (1 << 20);
	bool in_place = t->plans == SAME_PLACE_IN || (t->plans != SAME_PLACE_OUT && has(s, PLACE));

	if (t->windows) { /* the program's promise: the same offsets on all ranks */
		at = t->windows == ALL_IN_WINDOWS ? (uintptr_t)window_of(s) : at;
		to = (uintptr_t)window_of(s) + ((uintptr_t)1 << 46);
		in_place = false;
	}
	if (in_place)
		to = c.kind == SHUNT_ALLGATHER ? at - part : c.kind == SHUNT_REDUCESCATTER ? at + part : at;
	if (c.kind == SHUNT_SEND) {
		c.kind = s->i % 2 ? SHUNT_RECV : SHUNT_SEND;
		c.root = t->nranks - 1 - s->comm.rank;
	}
	c.send = (const void *)at;
	c.recv = (void *)to;
	c.stream = has(s, STREAM) ? window_of(s) : NULL;
	c.scalar = has(s, FACTOR) ? 0x3c01 : 0x4000;
	c.scalar_on_device = c.redop == SHUNT_PREMUL && has(s, FACTOR);
	return c;
}

/* ---- comparison ---- */

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

static bool same(const struct shunt_decision *a, const struct shunt_decision *b)
{
	if (a->algo != b->algo || a->reason * !a->algo != b->reason * !b->algo || !same_text(a->path, b->path))
		return false;
	if (a->need != b->need || a->settled != b->settled)
		return false;
	if (a->algo == &shunt_plan_algo)
		return a->need != SHUNT_NEED_PLAN || a->u.plan == b->u.plan;
	return !a->algo ||
	    (a->kernel == b->kernel && a->flags == b->flags && a->geometry.blocks == b->geometry.blocks &&
	        a->geometry.threads == b->geometry.threads && a->geometry.channels == b->geometry.channels);
}

static void note_difference(
    const struct setting *t, const struct shunt_coll *c, const struct shunt_decision *a, const struct shunt_decision *b)
{
	if (seen.differences++)
		return;
	snprintf(seen.first, sizeof(seen.first),
	    "%s of %zu %s, %s, among %d ranks%s%s%s%s%s, plans %d, windows %d, rules \"%s\": rank %d takes %s (%s; "
	    "need "
	    "%d), another rank %s (%s; need %d)",
	    shunt_kind_name(c->kind), c->count, shunt_dtype_name(c->dtype), shunt_redop_name(c->redop), t->nranks,
	    t->takes_all ? ", takes all" : "", t->sim ? ", sim" : "", t->deterministic ? ", deterministic" : "",
	    t->no_sms ? ", CTAPolicy zero" : "",
	    t->nvls     ? ", NCCL with multicast" :
	        t->file ? ", tuning file" :
	                  "",
	    (int)t->plans, (int)t->windows, t->rules ? t->rules : "", now->comm.rank, b->path ? b->path : "nccl",
	    shunt_reason_name((enum shunt_reason)b->reason), b->need, a->path ? a->path : "nccl",
	    shunt_reason_name((enum shunt_reason)a->reason), a->need);
}

static struct shunt_decision decide_in(struct slot *s, const struct shunt_coll *c)
{
	struct shunt_decision d = { 0 };

	now = s;
	call_now = c;
	shunt_comm_decide(&s->comm, c, &d);
	seen.decisions++;
	return d;
}

/*
 * A rank that decides before the set-up must come to the set-up if its peers do, and to their decision after it. So it
 * takes whatever any rank takes.
 */
static void decide_early(
    struct slot *s, const struct setting *t, const struct shunt_coll *c, const struct shunt_decision *want)
{
	struct shunt_decision d = { 0 };
	bool early;

	now = s;
	call_now = c;
	atomic_store(&s->comm.life.state, COMM_NEW);
	early = shunt_comm_decide(&s->comm, c, &d);
	if (want->algo && !early)
		note_difference(t, c, want, &d);
	if (t->nranks > 1 && (d.settled || (early && d.need != SHUNT_NEED_SETUP)))
		note_difference(t, c, want, &d);
	atomic_store(&s->comm.life.state, COMM_READY);
	shunt_comm_changed(&s->comm);
	shunt_comm_decide(&s->comm, c, &d);
	if (!same(want, &d))
		note_difference(t, c, want, &d);
	seen.early++;
}

static void decide_everywhere(const struct setting *t, const struct shunt_coll *shared)
{
	struct shunt_coll c = call_of(&slots[0], shared, t);
	struct shunt_decision first = decide_in(&slots[0], &c), d;

	seen.calls++;
	seen.forwarded += !first.algo;
	seen.plans += first.algo == &shunt_plan_algo;
	seen.windows += first.algo && first.need == SHUNT_NEED_WINDOW;
	for (int i = 1; i < SLOTS; i++) {
		c = call_of(&slots[i], shared, t);
		d = decide_in(&slots[i], &c);
		if (!same(&first, &d))
			note_difference(t, shared, &first, &d);
	}
	/* A file's table, and the sim's where SHUNT_DEVICE does not say so, are not known before. */
	if (seen.calls % 11 == 0 && !t->file && !t->sim) {
		int i = (int)(seen.calls / 11 % SLOTS);

		c = call_of(&slots[i], shared, t);
		decide_early(&slots[i], t, &c, &first);
	}
}

/* ---- enumeration ---- */

struct sizes {
	uint64_t bytes[MAX_SIZES];
	size_t n;
};

static void add_size(void *ctx, uint64_t size)
{
	struct sizes *s = ctx;

	for (size_t i = 0; i < s->n; i++)
		if (s->bytes[i] == size)
			return;
	assert_true(s->n < MAX_SIZES);
	s->bytes[s->n++] = size;
}

/* Where the answer changes, or might. */
static void collect_sizes(const struct setting *t, enum shunt_kind kind, struct sizes *sizes)
{
	static const uint64_t more[] = { 0, 1, 8, 16, 1000, MB, MB + 8, 3 * MB, 16 * MB, 32 * MB, 64 * MB, 128 * MB,
		(uint64_t)1 << 40, UINT64_MAX / 16 };
	struct shunt_sel_key key = key_of(t);

	sizes->n = 0;
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		add_size(sizes, more[i]);
	if (t->plans)
		for (size_t i = 5; i < 12; i++)
			add_size(sizes, more[i] / (unsigned)t->nranks);
	if (t->nranks > 1)
		shunt_select_crossovers(SEL(&key), kind, add_size, sizes);
}

static void decide_sizes(const struct setting *t, struct shunt_coll *c)
{
	const uint64_t esz = shunt_dtype_bytes[c->dtype];
	struct sizes sizes;

	collect_sizes(t, c->kind, &sizes);
	for (size_t i = 0; i < sizes.n; i++)
		for (int by = -1; by <= 1; by++) {
			c->count = sizes.bytes[i] / esz + (uint64_t)by;
			if (c->count <= UINT64_MAX / 16)
				decide_everywhere(t, c);
		}
}

static void decide_types(const struct setting *t, bool all)
{
	for (int kind = 0; kind < SHUNT_RECV; kind++)
		for (int type = 0; type < SHUNT_NDTYPES; type++)
			for (int op = 0; op < (shunt_kind_reduces((enum shunt_kind)kind) ? SHUNT_NREDOPS : 1); op++) {
				bool few = (type == SHUNT_U8 || type == SHUNT_BF16 || type == SHUNT_F64) &&
				    (op == SHUNT_SUM || op == SHUNT_PREMUL);
				struct shunt_coll c = { .kind = (enum shunt_kind)kind,
					.dtype = (enum shunt_dtype)type,
					.redop = (enum shunt_redop)op,
					.root = t->nranks - 1 };

				if (all || few)
					decide_sizes(t, &c);
			}
}

static void decide_setting(const struct setting *t)
{
	assert_int_equal(shunt_algo_force(t->rules), 0);
	for (int i = 0; i < SLOTS; i++)
		slot_open(&slots[i], i, t);
	decide_types(t, seen.settings % 29 == 0);
	for (int i = 0; i < SLOTS; i++)
		slot_close(&slots[i]);
	shunt_algo_force(NULL);
	seen.settings++;
}

static void set_plans(enum plans plans)
{
	shunt_plan_registry_reset(
	    plans ? getenv("DECIDE_PLANS") : "", "/dev/null/cache", plans == SAME_PLACE_IN || plans == SAME_PLACE_OUT);
	shunt_plan_set_selector(plans == SELECTOR ? select_by_size : NULL, NULL);
}

static const char *const rules[] = {
	NULL,
	"allreduce:0-64k:twoshot@16x256,broadcast:4k-1m:nccl,allgather:0-:ll128",
	"allgather:0-1m:ce,allreduce:64k-:direct,reducescatter:0-:direct,alltoall:0-inf:simple@8x128x2,send:1m-:nccl",
};

static bool is_possible(const struct setting *t)
{
	if (t->nranks == 1)
		return !t->file && !t->plans && !t->windows && !t->rules && !t->nvls;
	/* The bit is for windows in front of a real NCCL; with CTAPolicy zero, too, is one case of many. */
	if (t->nvls && (t->takes_all || t->no_sms || t->windows == NO_WINDOWS))
		return false;
	return !t->sim || (t->takes_all && !t->file);
}

/* every: 1: all settings; else each every-th of them. */
static void enumerate(unsigned every)
{
	unsigned n = 0;

	memset(&seen, 0, sizeof(seen));
	/* A fault that is noticed is noticed: no other plans, which take long to load, have to tell. */
	for (int plans = 0; plans < NPLANS && !(fault != SOUND && seen.differences); plans++) {
		set_plans((enum plans)plans);
		for (unsigned bits = 0; bits < 64; bits++)
			for (int nranks = 1; nranks <= SHUNT_MAX_RANKS; nranks++)
				for (int windows = 0; windows < NWINDOWS; windows++)
					for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++) {
						struct setting t = { .nranks = nranks,
							.takes_all = bits & 1,
							.sim = bits & 2,
							.deterministic = bits & 4,
							.no_sms = bits & 8,
							.file = bits & 16,
							.nvls = bits & 32,
							.plans = (enum plans)plans,
							.windows = (enum windows)windows,
							.rules = rules[r] };

						if (is_possible(&t) && n++ % every == 0)
							decide_setting(&t);
					}
	}
	set_plans(NO_PLANS);
}

/* Tables as a file has them, with rows of their own for three collectives. */
static void make_files(void)
{
	for (int n = 2; n <= SHUNT_MAX_RANKS; n++) {
		struct shunt_tuning *t = calloc(1, sizeof(*t));
		const struct shunt_tuning_row rows[] = {
			{ SHUNT_ALLREDUCE, false, 5000, shunt_algo_find(SHUNT_ALLREDUCE, "oneshot"), { 8, 128, 0 } },
			{ SHUNT_ALLREDUCE, true, UINT64_MAX, shunt_algo_find(SHUNT_ALLREDUCE, "simple"), { 0, 0, 0 } },
			{ SHUNT_ALLTOALL, false, 70000, shunt_algo_find(SHUNT_ALLTOALL, "simple"), { 4, 256, 2 } },
			{ SHUNT_SEND, false, 300, shunt_algo_find(SHUNT_SEND, "simple"), { 0, 0, 0 } },
		};

		assert_non_null(t);
		t->machine = (struct shunt_machine){ .gpu = "test", .cc = 90, .driver = 13000, .nranks = n };
		t->nrows = sizeof(rows) / sizeof(rows[0]);
		t->rows = malloc(sizeof(rows));
		memcpy(t->rows, rows, sizeof(rows));
		t->source = "test";
		t->windows = 1u << SHUNT_ALLREDUCE | 1u << SHUNT_ALLTOALL;
		t->windows_from[SHUNT_ALLREDUCE] = 4096;
		t->windows_from[SHUNT_ALLTOALL] = UINT64_MAX;
		assert_int_equal(shunt_tuning_finalize(t), 0);
		files[n] = t;
	}
}

static int setup(void **state)
{
	make_files();
	return 0;
}

static int teardown(void **state)
{
	for (int n = 2; n <= SHUNT_MAX_RANKS; n++) {
		free(files[n]->rows);
		free(files[n]);
	}
	return 0;
}

/* ---- tests ---- */

TEST(test_decide_all_ranks_decide_alike)
{
	enumerate(getenv("DECIDE_QUICK") ? 20 : 1);
	print_message(
	    "%lu settings, %lu calls, %lu decisions (%lu before the set-up): %lu calls forwarded, %lu by plans, "
	    "%lu in new windows\n",
	    seen.settings, seen.calls, seen.decisions, seen.early, seen.forwarded, seen.plans, seen.windows);
	if (seen.differences)
		fail_msg("%lu differences; the first: %s", seen.differences, seen.first);
	/* Each kind of answer was there. */
	assert_true(seen.early && seen.forwarded && seen.plans && seen.windows && seen.forwarded < seen.calls);
}

TEST(test_decide_a_look_at_a_value_of_ones_own_is_noticed)
{
	for (int f = ALIGN; f < NFAULTS; f++) {
		fault = f;
		enumerate(199);
		fault = SOUND;
		if (!seen.differences)
			fail_msg("the enumeration does not see fault %d", f);
	}
}

/* A window that comes between a call and its group's end counts on all ranks, early or late. */
TEST(test_decide_a_decision_holds_until_something_changes)
{
	struct setting t = { .nranks = 4, .no_sms = true };
	struct slot *s = &slots[0];
	struct shunt_coll c = { .kind = SHUNT_ALLGATHER, .dtype = SHUNT_U8, .count = 64 };
	struct shunt_decision early = { 0 }, late = { 0 };
	struct shunt_window *window;

	slot_open(s, 0, &t);
	c.send = window_of(s);
	c.recv = window_of(s) + MB;
	assert_true(shunt_comm_decide(&s->comm, &c, &early));
	assert_string_equal(early.path, "ll128");
	assert_true(early.settled);
	early.path = "kept";
	shunt_comm_decide(&s->comm, &c, &early);
	assert_string_equal(early.path, "kept");
	assert_true(shunt_comm_can_launch(&s->comm, &early));

	/* Rules that come in between count, too. */
	assert_int_equal(shunt_algo_force("allgather:0-:simple"), 0);
	assert_false(shunt_comm_can_launch(&s->comm, &early));
	assert_true(shunt_comm_decide(&s->comm, &c, &early));
	assert_string_equal(early.path, "simple");
	assert_int_equal(shunt_algo_force(NULL), 0);
	assert_true(shunt_comm_decide(&s->comm, &c, &early));
	assert_string_equal(early.path, "ll128");

	window = shunt_symmem_add(&s->comm, window_of(s), 2 * MB, true);
	assert_true(shunt_comm_decide(&s->comm, &c, &early) && shunt_comm_decide(&s->comm, &c, &late));
	assert_string_equal(early.path, "ce");
	assert_true(same(&early, &late));
	assert_true(!late.settled && late.need == SHUNT_NEED_WINDOW);
	assert_true(shunt_comm_needs_round(&s->comm, &late));

	assert_true(shunt_symmem_remove(&s->comm, window));
	assert_true(shunt_comm_decide(&s->comm, &c, &late));
	assert_string_equal(late.path, "ll128");
	atomic_store(&s->comm.life.state, COMM_FORWARD);
	shunt_comm_changed(&s->comm);
	assert_false(shunt_comm_decide(&s->comm, &c, &late));
	assert_true(late.settled && !late.path && late.reason == SHUNT_REASON_COMM);
	slot_close(s);
}

int main(void)
{
	return tests_run(setup, teardown);
}
