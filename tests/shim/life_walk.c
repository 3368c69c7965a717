/* SPDX-License-Identifier: MIT */
/*
 * The tables of shim/handles/handle_life.h once more, as data. Each step makes one event on a life and on the states
 * here, and compares what the event returned and all that can be asked.
 */
#include "tools/common/libc.h"
#include "shim/handles/handle_life.h"
#include "tests/shim/life_walk.h"

enum event {
	FINALIZE,
	REVOKE,
	STOP,
	SUSPEND,
	RESUME,
	LOCATE,
	FAIL,
	LOSE,
	REVOKE_TASKS,
	TASKS_REVOKED,
	ABORT,
	NEVENTS,
};

enum part { USE, MEMORY, PLACE, TASKS, CANCEL, NPARTS };

enum { REFUSED = -1, BEFORE = -2 /* the tasks' state when their revocation began */ };

/* An event's row in a part's table. */
static const struct row {
	enum event event;
	enum part part;
	int to[3];
} rows[] = {
	{ FINALIZE, USE, { SHUNT_LIFE_FINALIZED, REFUSED, REFUSED } },
	{ REVOKE, USE, { SHUNT_LIFE_REVOKED, REFUSED, REFUSED } },
	{ STOP, USE, { SHUNT_LIFE_REVOKED, SHUNT_LIFE_REVOKED, SHUNT_LIFE_REVOKED } },
	{ SUSPEND, MEMORY, { SHUNT_LIFE_SUSPENDED, REFUSED } },
	{ RESUME, MEMORY, { REFUSED, SHUNT_LIFE_RESIDENT } },
	{ LOCATE, PLACE, { SHUNT_LIFE_KNOWN, SHUNT_LIFE_KNOWN } },
	{ FAIL, TASKS, { SHUNT_LIFE_FAILED, REFUSED, REFUSED } },
	{ LOSE, TASKS, { SHUNT_LIFE_LOST, SHUNT_LIFE_LOST, REFUSED } },
	{ TASKS_REVOKED, TASKS, { SHUNT_LIFE_SOUND, BEFORE, SHUNT_LIFE_LOST } },
	{ REVOKE_TASKS, CANCEL, { SHUNT_LIFE_REVOKING, SHUNT_LIFE_REVOKING, SHUNT_LIFE_ABORTED } },
	{ TASKS_REVOKED, CANCEL, { SHUNT_LIFE_GO, SHUNT_LIFE_GO, SHUNT_LIFE_ABORTED } },
	{ ABORT, CANCEL, { SHUNT_LIFE_ABORTED, SHUNT_LIFE_ABORTED, SHUNT_LIFE_ABORTED } },
};

struct model {
	int state[NPARTS];
	ncclResult_t result;
	/* Of the last revoke_tasks: what it returned, and what the tasks were then. */
	unsigned token;
	int before;
	ncclResult_t before_result;
};

/* By the tables; what the event is to return. */
static int step_model(struct model *m, enum event event, ncclResult_t result)
{
	int err = 0;

	if (event == REVOKE_TASKS) {
		m->before = m->state[TASKS];
		m->before_result = m->result;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int *state = &m->state[rows[i].part], to = rows[i].to[*state];

		if (rows[i].event != event)
			continue;
		if (to == REFUSED) {
			err = -EBUSY;
		} else if (to == BEFORE) {
			*state = m->before;
			m->result = m->before_result;
		} else {
			*state = to;
			if (event == FAIL || event == LOSE)
				m->result = result;
		}
	}
	return err;
}

static int step_life(struct shunt_life *life, struct model *m, enum event event, ncclResult_t result)
{
	switch (event) {
	case FINALIZE:
		return shunt_life_finalize(life);
	case REVOKE:
		return shunt_life_revoke(life);
	case STOP:
		return shunt_life_stop(life);
	case SUSPEND:
		return shunt_life_suspend(life);
	case RESUME:
		return shunt_life_resume(life);
	case LOCATE:
		return shunt_life_locate(life);
	case FAIL:
		return shunt_life_fail(life, result);
	case LOSE:
		return shunt_life_lose(life, result);
	case REVOKE_TASKS:
		m->token = shunt_life_revoke_tasks(life);
		return 0;
	case TASKS_REVOKED:
		shunt_life_tasks_revoked(life, m->token);
		return 0;
	default:
		shunt_life_abort(life);
		return 0;
	}
}

static void compare(const struct shunt_life *life, const struct model *m, enum event event, int err, int expected)
{
	bool open = m->state[USE] == SHUNT_LIFE_OPEN && m->state[MEMORY] == SHUNT_LIFE_RESIDENT;
	bool known = m->state[PLACE] == SHUNT_LIFE_KNOWN;

	if (err == expected && (int)shunt_life_use(life) == m->state[USE] &&
	    shunt_life_is_suspended(life) == (m->state[MEMORY] == SHUNT_LIFE_SUSPENDED) &&
	    shunt_life_is_located(life) == known && (int)shunt_life_tasks(life) == m->state[TASKS] &&
	    shunt_life_result(life) == m->result && atomic_load(&life->cancel) == m->state[CANCEL] &&
	    shunt_life_is_open(life) == open && shunt_life_takes_calls(life) == (open && known))
		return;
	fprintf(stderr,
	    "event %d returned %d, the tables say %d; the word is %x, cancel %d; the tables say use %d, memory %d, "
	    "place %d, "
	    "tasks %d, result %d, cancel %d\n",
	    (int)event, err, expected, atomic_load(&life->word), atomic_load(&life->cancel), m->state[USE],
	    m->state[MEMORY], m->state[PLACE], m->state[TASKS], (int)m->result, m->state[CANCEL]);
	abort();
}

static void begin(struct shunt_life *life, struct model *m)
{
	shunt_life_init(life);
	*m = (struct model){ .state = { [PLACE] = SHUNT_LIFE_UNKNOWN } };
	compare(life, m, NEVENTS, 0, 0);
}

/* A number for the states of all parts together. */
static unsigned state_number(const struct model *m)
{
	unsigned n = 0;

	for (int part = 0; part < NPARTS; part++)
		n = 3 * n + (unsigned)m->state[part];
	return n;
}

void life_walk(struct choices *choices, unsigned max, struct life_seen *seen)
{
	static const ncclResult_t errors[] = { ncclUnhandledCudaError, ncclSystemError, ncclInternalError,
		ncclInvalidUsage, ncclRemoteError };
	bool visited[243] = { false };
	struct shunt_life life;
	struct model m;

	begin(&life, &m);
	for (unsigned i = 0; i < max && !choices_ended(choices); i++) {
		enum event event = (enum event)choices_below(choices, NEVENTS + 1);
		ncclResult_t result = errors[choices_below(choices, sizeof(errors) / sizeof(errors[0]))];
		int expected, err;

		if (event == NEVENTS) { /* the entry is recycled, in one of a few steps */
			if (!choices_below(choices, 4))
				begin(&life, &m);
			continue;
		}
		if (event == TASKS_REVOKED && m.state[CANCEL] != SHUNT_LIFE_REVOKING)
			continue; /* it follows a revoke_tasks */
		expected = step_model(&m, event, result);
		err = step_life(&life, &m, event, result);
		compare(&life, &m, event, err, expected);
		visited[state_number(&m)] = true;
		if (!seen)
			continue;
		seen->events |= 1u << event;
		seen->moved += !err;
		seen->refused += err != 0;
	}
	for (size_t i = 0; seen && i < sizeof(visited); i++)
		seen->visited += visited[i];
}
