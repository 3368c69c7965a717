/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a hello to the bootstrap's root, as an answer of it, as a unique id, and as values of the variables:
 * each is refused or taken, and nothing breaks. For libFuzzer, and for fuzz_drive.c. The sources are included, so that
 * what they keep to themselves can be called; nothing goes out to the network.
 */
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>

static int no_connect(int fd, const struct sockaddr *addr, socklen_t len);
static int no_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list);
#define connect no_connect
#include "transport/bootstrap/bootstrap.c"
#undef connect
#undef RETRY_MS
#define close_socket root_close_socket
#define send_answer root_send_answer
#include "transport/bootstrap/root.c"
#undef send_answer
#define getaddrinfo no_getaddrinfo
#include "transport/net/netif.c"
#undef getaddrinfo
#include "base/config_types.h"
#include "base/env.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int no_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	errno = ENETUNREACH;
	return -1;
}

/* Numbers only: a resolver takes its time. */
static int no_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
	struct addrinfo h = *hints;

	h.ai_flags |= AI_NUMERICHOST;
	return getaddrinfo(host, service, &h, list);
}

static void require(bool cond, const char *what)
{
	if (cond)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

/*
 * A few hellos, one after another, each with a right proof unless its first byte says otherwise: deeper than a stranger
 * comes.
 */
static void try_hellos(const uint8_t *data, size_t bytes)
{
	struct root *root = calloc(1, sizeof(*root));
	size_t n = sizeof(struct bootstrap_hello);

	require(root && root_pfds(root), "memory");
	root->listen_fd = -1;
	root->status = 1;
	memset(root->id.secret, 7, sizeof(root->id.secret));
	shunt_host_id(root->host, root->id.secret, sizeof(root->id.secret));
	for (int turn = 0; bytes > 1 && turn < 6; turn++) {
		struct pending_conn p = { .fd = -1 };
		size_t take = bytes - 1 < n ? bytes - 1 : n;
		int pair[2], arrived = root->arrived;
		bool proves = *data & 1;

		require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), "socketpair");
		p.fd = pair[0];
		p.hello = (struct bootstrap_hello){ .magic = BOOTSTRAP_MAGIC,
			.version = BOOTSTRAP_VERSION,
			.rank = turn,
			.nranks = 4,
			.shunt = SHUNT_VERSION };
		memcpy(p.hello.host, root->host, sizeof(p.hello.host));
		/* What is given changes a hello that is right; zero leaves it so. */
		for (size_t i = 0; i < take; i++)
			((uint8_t *)&p.hello)[i] ^= data[1 + i];
		if (proves)
			shunt_mac(p.hello.mac, root->id.secret, sizeof(root->id.secret), "shunt bootstrap hello",
			    p.nonce, sizeof(p.nonce), &p.hello, offsetof(struct bootstrap_hello, mac));
		admit(root, &p);
		require(proves || root->arrived == arrived, "a rank without a proof was admitted");
		require(root->arrived <= root->nranks && root->nranks <= SHUNT_BOOTSTRAP_MAX_RANKS,
		    "more ranks than there are");
		if (p.fd >= 0)
			close(p.fd);
		close(pair[1]);
		data += 1 + take;
		bytes -= 1 + take;
		if (root->status != 1)
			break;
	}
	root_destroy(root);
}

/* What comes from whoever listens at the id's address. */
static void try_answers(const uint8_t *data, size_t bytes)
{
	struct bootstrap_hello hello = { .rank = 0, .nranks = 2 };
	struct bootstrap_id id = { .magic = BOOTSTRAP_MAGIC };
	struct bootstrap_answer a = { .magic = BOOTSTRAP_MAGIC, .version = BOOTSTRAP_VERSION, .kind = BOOTSTRAP_DONE };
	bool proves = bytes && *data & 1;
	int pair[2], err;

	for (size_t i = 1; i < bytes && i <= sizeof(a); i++)
		((uint8_t *)&a)[i - 1] ^= data[i];
	if (proves)
		shunt_mac(a.mac, id.secret, sizeof(id.secret), "shunt bootstrap answer", hello.nonce,
		    sizeof(hello.nonce), &a, offsetof(struct bootstrap_answer, mac));
	require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), "socketpair");
	(void)!write(pair[1], &a, bytes % 3 ? sizeof(a) : bytes % sizeof(a));
	close(pair[1]);
	err = wait_status(pair[0], &id, &hello, NULL);
	require(err <= 0 && (proves || err), "an answer without a proof was believed");
	close(pair[0]);
}

static void try_id(const uint8_t *data, size_t bytes)
{
	struct bootstrap_id id = { .magic = BOOTSTRAP_MAGIC, .version = BOOTSTRAP_VERSION, .family = 4, .port = 1 };
	int rank = bytes ? data[0] % 5 : 0;

	for (size_t i = 1; i < bytes && i <= sizeof(id); i++)
		((uint8_t *)&id)[i - 1] ^= data[i];
	id.from_env = 0; /* else it would listen and try for long */
	require(shunt_bootstrap_join((const uint8_t *)&id, rank, 4, NULL) < 0, "an id that leads nowhere was joined");
}

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
	shunt_netif_match(text, "eth0");
	require(
	    !shunt_env_find(text, "NCCL_ALGO", value, sizeof(value)) || strnlen(value, sizeof(value)) < sizeof(value),
	    "a value from a file has no end");
	shunt_netif_parse(text, NULL, &addr);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static void (*const entries[])(
	    const uint8_t *data, size_t bytes) = { try_hellos, try_answers, try_id, try_values };
	static bool silenced;

	if (!silenced) {
		setenv("SHUNT_LOG", "none", 1);
		shunt_log_reset();
		silenced = true;
	}
	if (bytes)
		entries[*data % 4](data + 1, bytes - 1);
	return 0;
}
