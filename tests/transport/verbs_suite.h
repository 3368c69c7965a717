/* SPDX-License-Identifier: MIT */
#pragma once
/* What the files of test_verbs share: a process for each case and two ends with memory. */
#include "base/config.h"
#include "tests/support/unit.h"
#include "transport/net/verbs/verbs.h"
#include "transport/net/verbs/verbs_priv.h"

static const struct shunt_net_ops *const ops = &shunt_net_verbs_ops;
extern const char *fake, *old; /* paths of the libraries of tests/fake_ibverbs */
extern char script[];          /* path of a file that the library reads faults from */

/* In the process of a case. */
#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
			child_exit(1); \
		} \
	} while (0)

struct setting {
	const char *name, *value;
};
#define NONE { NULL, NULL }

/* As fork(); the child has these settings. */
pid_t fork_with(const struct setting *settings);
/* The status of a process with these settings that does this, or -1. */
#define IN_PROCESS(statement, ...) \
	({ \
		pid_t in_process_ = fork_with((const struct setting[]){ __VA_ARGS__ __VA_OPT__(, ) NONE }); \
\
		if (!in_process_) { \
			statement; \
			child_exit(0); \
		} \
		child_wait(in_process_); \
	})
#define CASE(statement, ...) assert_int_equal(IN_PROCESS(statement, __VA_ARGS__), 0)

struct end {
	struct shunt_net_device *device;
	struct shunt_net_endpoint *endpoint;
	struct shunt_net_blob blob;
	struct shunt_net_memory *memory;
	bool ready, ended, dead;
	int err;
	char text[512];
	uint64_t done, signalled;
};

extern struct end ends[2];

void step(struct end *end);
#define UNTIL(cond) \
	do { \
		int64_t until_ms = unit_now_ms() + AT_ONCE_MS; \
		while (!(cond)) { \
			step(&ends[0]); \
			step(&ends[1]); \
			CHECK(unit_now_ms() < until_ms); \
		} \
	} while (0)

/* End i on device i, or both on one; on so many rails, and with additions to words, if the settings say so. */
void begin_within(int64_t connect_ms);
void begin(void);
/* Their memory, too. */
void end_all(void);

extern _Alignas(64) uint8_t from[65536], to[65536];
#define WIDE ((size_t)1 << 20)
extern uint8_t wide_from[WIDE], wide_to[WIDE];

#define REGION(array, flags) ((struct shunt_net_region){ array, sizeof(array), -1, 0, flags })
/* Registers memory of end 0 and of end 1: a put of nothing yet from the beginning of one to that of the other. */
struct shunt_net_put put_between(struct shunt_net_region source, struct shunt_net_region target);
/* Begins, and gives the same when both ends are ready. */
struct shunt_net_put begin_put(struct shunt_net_region source, struct shunt_net_region target);

/* Puts with signals, n of them, as long as end 0 lives. */
void put_many(int n);
void works(void);
void expect_dead(const char *text);
void write_script(const char *text);
