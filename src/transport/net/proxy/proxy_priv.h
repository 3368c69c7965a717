/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * For the files of this folder. Once the proxy thread has an object, everything in it but the atomics belongs to that
 * thread.
 */
#include <pthread.h>
#include <semaphore.h>
#include "kernels/net_rings.h"
#include "transport/net/proxy/proxy.h"

/* The channel of the signal by which a rank says that it has given up. */
#define SHUNT_PROXY_ABORT_CHANNEL (SHUNT_NET_MAX_CHANNELS - 1)
/* By rank, as the next: the sender has given up because of this rank. */
#define SHUNT_PROXY_BECAUSE_CHANNEL SHUNT_PROXY_FIRST_CHANNEL
/* The process of this rank of the sender's host is dead. */
#define SHUNT_PROXY_DIED_CHANNEL (SHUNT_PROXY_BECAUSE_CHANNEL + SHUNT_NET_MAX_RANKS)
/* A farewell that a dead process had said has come by then. Tests set it. */
extern atomic_int shunt_proxy_doubt_ms;

/* Puts of a connection that are under way, at most. */
#define SHUNT_PROXY_POSTED 256

/*
 * | event            | NEW  | READY | ENDED | DEAD |
 * |------------------|------|-------|-------|------|
 * | SHUNT_NET_READY  | READY|       |       |      |
 * | SHUNT_NET_END    |      | ENDED |       |      |
 * | SHUNT_NET_ERROR  | DEAD | DEAD  | DEAD  |      |
 *
 * The error of an ENDED connection is no failure: its peer sends nothing any more, and has closed it.
 */
enum connection_state { CONNECTION_NEW, CONNECTION_READY, CONNECTION_ENDED, CONNECTION_DEAD };

struct connection {
	struct shunt_proxy *proxy;
	struct shunt_net_endpoint *endpoint;
	struct shunt_net_remote memory; /* the peer's */
	struct shunt_net_remote words;  /* of additions: the same, and where this rank's signals are counted in it */
	uint64_t raised_at;
	enum connection_state state;
	int rank;              /* the peer's */
	bool finished;         /* the peer was told that no more puts follow */
	int64_t doubted_ms;    /* the peer is dead, unless its farewell comes until then; 0: not so */
	bool doubt_is_over;    /* so it was at the last work: the network was looked at after that */
	uint64_t posted, done; /* puts */
	int64_t moved_ms;      /* with an owner that goes on: when one was done, or the first was posted */
	uint64_t places[SHUNT_PROXY_POSTED]; /* in the FIFO, from 1, of those that are posted and not done */
	char name[96];
};

/* Memory that triggers name by number. */
struct region {
	struct shunt_proxy_region is;
	struct shunt_net_memory *memory;  /* NULL: no memory has this number */
	struct shunt_net_remote *remotes; /* by connection; NULL: not connected */
};

struct proxy_thread;

struct shunt_proxy {
	struct shunt_proxy_config config;
	struct proxy_thread *thread;
	struct shunt_proxy *next; /* of the thread's */
	struct shunt_net_memory *memory, *landing, *words;
	struct region *regions; /* by number */
	unsigned nregions;
	uint64_t taken; /* triggers */
	bool takes;     /* triggers are taken */
	bool finishing;
	bool doubts; /* connections have some */
	atomic_bool failed, ended;
	atomic_int nready; /* connections that were ready once */
	int err;           /* of failed, as the next two; written before it */
	int failed_at;     /* the connection */
	char text[256];
	int notify_fd; /* written when nready or failed changes; -1 once it has ended */
	struct connection connection[];
};

/* A command for the thread, whose caller waits until it is done. */
struct proxy_command {
	void (*fn)(struct proxy_thread *thread, void *arg);
	void *arg;
	sem_t done;
	struct proxy_command *next;
};

struct proxy_thread {
	/* What the thread serves. SHUNT_LOCK_PROXY guards it, users, next and commands. */
	const struct shunt_net_ops *net;
	struct shunt_net_rails rails;
	int gpu, users;
	bool ended; /* the thread takes no commands any more */
	struct proxy_thread *next;
	struct proxy_command *commands;
	pthread_t id;
	int wake_fd;
	atomic_bool asleep, stopping;
	atomic_bool has_commands;
	atomic_bool called; /* shunt_proxy_wake(): a launch is on its way */
	/* The thread's own. */
	struct shunt_net_device *device;
	struct shunt_proxy *proxies;
};

static inline struct shunt_net_words *shunt_proxy_words(const struct shunt_proxy *proxy)
{
	return proxy->config.memory;
}

/* proxy_carry.c */
/* Goes on with a communicator's part. True: there was something to do. */
bool shunt_proxy_work(struct shunt_proxy *proxy);
/* True of all in the list: the peers know, or will know though this process ends, that nothing follows. */
bool shunt_proxy_left(const struct shunt_proxy *list);
void shunt_proxy_event(const struct shunt_net_event *event);
/* The communicator has failed, with this connection: tells its peers and its owner, once. */
void shunt_proxy_fail(struct connection *connection, int err, const char *text);
/* Tells all peers that this rank has given up, because of this rank, or (-1) of none. */
void shunt_proxy_tell_peers(struct shunt_proxy *proxy, int rank);
/* Tells them that the process of this rank is dead. */
void shunt_proxy_tell_death(struct shunt_proxy *proxy, int rank);
/* Closes its connections and gives its memory back. */
void shunt_proxy_close_all(struct shunt_proxy *proxy);

/* proxy_thread.c, which calls proxy_carry.c */
/* The thread for these network devices and this GPU, with one user more. 0 or -errno (logged). */
int shunt_proxy_thread_get(
    const struct shunt_net_ops *net, const struct shunt_net_rails *rails, int gpu, struct proxy_thread **thread_p);
/* One user less; ends it with the last. */
void shunt_proxy_thread_put(struct proxy_thread *thread);
/* Runs fn(thread, arg) on the thread, and returns when it has. */
void shunt_proxy_thread_call(struct proxy_thread *thread, void (*fn)(struct proxy_thread *, void *), void *arg);
void shunt_proxy_thread_wake(struct proxy_thread *thread);
