/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as what a rendezvous reads: hellos at a server and at a root that is a rank, answers and rows at a member,
 * parts and results of a round, a unique id, and values of the variables. Each is refused or taken, and nothing breaks.
 * For libFuzzer, and for bytes_drive.c. Random numbers are always the same, and nothing goes out to the network: the
 * linker puts functions of ours in the place of those of the C library.
 */
#include <netdb.h>
#include <sys/socket.h>
#include "tools/common/libc.h"
#include "base/host.h"
#include "base/config.h"
#include "base/config_types.h"
#include "base/env.h"
#include "base/inet/device_list.h"
#include "base/inet/netif.h"
#include "base/log.h"
#include "shunt/shunt.h"
#include "transport/rendezvous/bootstrap.h"
#include "transport/rendezvous/join_member.h"
#include "transport/rendezvous/join_root.h"
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wire.h"
#include "tests/support/fuzz_try.h"

enum { RANKS = 4 };

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
ssize_t __wrap_getrandom(void *buf, size_t bytes, unsigned flags);
int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list);

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	errno = ENETUNREACH;
	return -1;
}

/* A member's nonce must be known to forge an answer for it. */
ssize_t __wrap_getrandom(void *buf, size_t bytes, unsigned flags)
{
	memset(buf, 7, bytes);
	return (ssize_t)bytes;
}

/* Numbers only: a resolver takes its time. */
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
	struct addrinfo h = *hints;

	h.ai_flags |= AI_NUMERICHOST;
	return __real_getaddrinfo(host, service, &h, list);
}

static struct rdzv_key fuzz_key(void)
{
	uint8_t secret[RDZV_SECRET];

	memset(secret, 9, sizeof(secret));
	return rdzv_key(secret, sizeof(secret));
}

static void pair_open(int pair[2])
{
	require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), "socketpair");
}

/* A message that is right, with bytes of the input over it; zero leaves it so. */
static void change(void *message, size_t size, const uint8_t *data, size_t bytes)
{
	for (size_t i = 0; i < size && i < bytes; i++)
		((uint8_t *)message)[i] ^= data[i];
}

/* ---- the root's side */

/*
 * A few hellos, one after another, each with a right proof unless its first byte says otherwise: deeper than a stranger
 * comes.
 */
static void try_hellos_at(struct rdzv_root *root, const uint8_t *data, size_t bytes)
{
	struct rdzv_lobby *lobby = root->lobby;
	int ends[8], n = 0;

	require(!rdzv_root_init(root), "memory");
	for (int turn = 0; bytes > 1 && turn < 6 && root->status == RDZV_OPEN; turn++) {
		size_t take = bytes - 1 < sizeof(struct rdzv_hello) ? bytes - 1 : sizeof(struct rdzv_hello);
		struct rdzv_conn *conn = &lobby->conn[lobby->nconns++];
		bool proves = *data & 1;
		int pair[2], arrived = root->arrived;
		struct rdzv_hello hello;

		pair_open(pair);
		ends[n++] = pair[1];
		*conn = (struct rdzv_conn){ .fd = pair[0], .turn = ++lobby->turns, .since = INT64_MAX / 2 };
		require(!rdzv_hello_init(&hello, RDZV_HELLO, &lobby->key), "hello");
		hello.member = hello.rank = turn + (root->rank >= 0);
		hello.nmembers = hello.nranks = RANKS;
		change(&hello, sizeof(hello), data + 1, take);
		if (proves)
			rdzv_hello_sign(&hello, &lobby->key, conn->nonce);
		require(write(pair[1], &hello, sizeof(hello)) == sizeof(hello), "socketpair");
		rdzv_root_step(root);
		require(proves || root->arrived == arrived, "a rank without a proof was admitted");
		require(root->arrived <= root->nranks && root->nranks <= SHUNT_BOOTSTRAP_MAX_RANKS,
		    "more ranks than there are");
		require(root->status <= 0 || root->status == RDZV_OPEN, "an outcome that there is not");
		data += 1 + take;
		bytes -= 1 + take;
	}
	if (root->status != RDZV_OPEN)
		rdzv_root_answer_all(root, false);
	rdzv_root_finish(root);
	while (n)
		close(ends[--n]);
}

static void try_hellos(const uint8_t *data, size_t bytes, bool server)
{
	struct rdzv_lobby lobby = { .kind = &shunt_socket_tcp, .key = fuzz_key(), .listen_fd = -1, .event_fd = -1 };
	struct rdzv_root root = { .lobby = &lobby, .rank = server ? -1 : 0 };

	lobby.conn = calloc(RDZV_LOBBY_PLACES, sizeof(*lobby.conn));
	require(lobby.conn, "memory");
	if (!server)
		root.nranks = root.nmembers = RANKS;
	try_hellos_at(&root, data, bytes);
	rdzv_lobby_finish(&lobby);
}

static void try_server_hellos(const uint8_t *data, size_t bytes)
{
	try_hellos(data, bytes, true);
}

static void try_rank_hellos(const uint8_t *data, size_t bytes)
{
	try_hellos(data, bytes, false);
}

/* ---- the member's side */

/* A challenge, an answer and its rows, from whoever listens at the root's address. */
static void try_answers(const uint8_t *data, size_t bytes)
{
	struct {
		struct rdzv_challenge challenge;
		struct rdzv_answer answer;
		struct shunt_rendezvous_row rows[RANKS];
	} said = { .challenge.head = rdzv_head(RDZV_CHALLENGE),
		.answer = { .head = rdzv_head(RDZV_DONE), .nrows = RANKS } };
	struct rdzv_key key = fuzz_key();
	struct rdzv_ask ask = { .key = &key,
		.what = "fuzz",
		.nmembers = RANKS,
		.nranks = RANKS,
		.challenge_deadline = INT64_MAX,
		.deadline = INT64_MAX };
	struct shunt_rendezvous_row *rows = NULL;
	bool proves = bytes && *data & 1;
	size_t cut = bytes ? *data / 2 : 0;
	uint8_t nonce[RDZV_NONCE];
	int pair[2], err;

	memset(nonce, 7, sizeof(nonce));
	said.rows[0].pid = (uint32_t)getpid();
	if (bytes) {
		/* The challenge's nonce does not matter: only its header is changed. */
		size_t head = bytes - 1 < sizeof(struct rdzv_head) ? bytes - 1 : sizeof(struct rdzv_head);

		change(&said.challenge, head, data + 1, head);
		change(&said.answer, sizeof(said.answer) + sizeof(said.rows), data + 1 + head, bytes - 1 - head);
	}
	if (proves) {
		uint32_t nrows = said.answer.nrows;

		said.answer.nrows = nrows < RANKS ? nrows : RANKS;
		rdzv_answer_sign(&said.answer, said.rows, &key, nonce);
		said.answer.nrows = nrows;
	}
	pair_open(pair);
	(void)!write(pair[1], &said, cut && cut < 100 ? sizeof(said) - cut : sizeof(said));
	shutdown(pair[1], SHUT_WR);
	err = rdzv_member_join(pair[0], &ask, &rows);
	require(err <= 0 && (proves || err), "an answer without a proof was believed");
	require(!err == !!rows, "a join without its rows, or rows without a join");
	free(rows);
	close(pair[0]);
	close(pair[1]);
}

static void try_id(const uint8_t *data, size_t bytes)
{
	struct rdzv_unique_id id = { .magic = RDZV_MAGIC, .version = RDZV_VERSION, .family = 4, .port = 1 };
	int rank = bytes ? data[0] % 5 : 0;
	struct shunt_hosts *hosts;

	if (bytes)
		change(&id, sizeof(id), data + 1, bytes - 1);
	id.from_env = 0; /* else it would listen and try for long */
	require(shunt_bootstrap_join((const uint8_t *)&id, rank, RANKS, NULL, &hosts, NULL) < 0,
	    "an id that leads nowhere was joined");
}

/* ---- rounds */

/* What a member gives to the root, or the root to a member, of a star of two that has been joined. */
static void try_round(const uint8_t *data, size_t bytes)
{
	bool is_root = bytes && *data & 1, unix_socket = bytes && *data & 2;
	struct shunt_rendezvous *rdzv = rdzv_create(unix_socket ? &shunt_socket_unix : &shunt_socket_tcp, fuzz_key());
	struct shunt_ranks ranks = { .rank = is_root ? 0 : 1, .nranks = 2, .timeout_ms = 1000 };
	struct rdzv_contrib contrib = { .head = rdzv_head(RDZV_CONTRIB), .bytes = 8 };
	struct rdzv_result result = { .head = rdzv_head(RDZV_RESULT), .bytes = 8 };
	uint8_t all[16], mine[8] = { 1 }, rest[18] = { 0 };
	int pair[2], fds[2] = { -1, -1 }, err;

	require(rdzv, "memory");
	pair_open(pair);
	rdzv->nranks = 2;
	rdzv->joined = true;
	rdzv->is_root = is_root;
	rdzv->rank = is_root ? 0 : 1;
	if (is_root) {
		rdzv->peer_fds = malloc(2 * sizeof(int));
		require(rdzv->peer_fds, "memory");
		rdzv->peer_fds[0] = -1;
		rdzv->peer_fds[1] = pair[0];
	} else {
		rdzv->root_fd = pair[0];
	}
	contrib.uses_fds = unix_socket;
	if (bytes) {
		change(&contrib, sizeof(contrib), data + 1, bytes - 1);
		change(&result, sizeof(result), data + 1, bytes - 1);
		if (bytes > 33)
			change(rest, sizeof(rest), data + 33, bytes - 33);
	}
	(void)!write(pair[1], is_root ? (void *)&contrib : (void *)&result, sizeof(contrib));
	(void)!write(pair[1], rest, is_root ? 8 : sizeof(rest));
	shutdown(pair[1], SHUT_WR);
	ranks.rendezvous = rdzv;
	err = shunt_rendezvous_allgather(&ranks, mine, sizeof(mine), all, -1, unix_socket ? fds : NULL);
	require(err <= 0, "an error that there is not");
	require(fds[0] < 0 && fds[1] < 0, "a descriptor that nobody sent");
	require(err || !is_root || !memcmp(all, mine, sizeof(mine)), "the root's own part is lost");
	shunt_rendezvous_destroy(rdzv);
	close(pair[1]);
}

/* ---- variables */

static const char *value_of(void *arg, const char *name)
{
	static const char *const long_names[] = { "SHUNT_TIMEOUT", "NCCL_DEBUG_FILE", "SHUNT_ALGO" };
	const char *text = arg;

	/* Each variable gets another part of the text. */
	for (size_t i = 0; i < sizeof(long_names) / sizeof(long_names[0]); i++)
		if (!strcmp(name, long_names[i]))
			return text;
	return text + strlen(text) * (name[strlen(name) - 1] % 8) / 8;
}

static void try_values(const uint8_t *data, size_t bytes)
{
	char *text = malloc(bytes + 1), *names[] = { text, NULL };
	struct shunt_log_settings log;
	struct shunt_settings settings;
	struct shunt_netaddr addr;
	char value[16];

	require(text, "memory");
	memcpy(text, data, bytes);
	text[bytes] = '\0';
	shunt_settings_parse(&settings, value_of, text, names);
	for (struct shunt_config_row row, *r = &row; r; r = NULL)
		for (size_t i = 0; shunt_settings_row(&settings, i, r); i++)
			;
	shunt_settings_finish(&settings);
	shunt_log_parse(value_of, text, &log);
	require(strnlen(log.path, sizeof(log.path)) < sizeof(log.path), "the log's path has no end");
	shunt_device_list_match(text, "eth0", 0);
	require(
	    !shunt_env_find(text, "NCCL_ALGO", value, sizeof(value)) || strnlen(value, sizeof(value)) < sizeof(value),
	    "a value from a file has no end");
	shunt_netif_parse(text, NULL, &addr);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static void (*const entries[])(const uint8_t *data, size_t bytes) = { try_server_hellos, try_answers, try_id,
		try_values, try_rank_hellos, try_round };
	static bool silenced;

	if (!silenced) {
		setenv("SHUNT_LOG", "none", 1);
		setenv("SHUNT_TIMEOUT", "1s", 1);
		setenv("SHUNT_SETUP_TIMEOUT", "1s", 1);
		shunt_log_reset();
		silenced = true;
	}
	if (bytes)
		entries[*data % (sizeof(entries) / sizeof(entries[0]))](data + 1, bytes - 1);
	return 0;
}
