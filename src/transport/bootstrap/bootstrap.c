/* SPDX-License-Identifier: MIT */
#include "transport/bootstrap/bootstrap.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "transport/bootstrap/wire.h"
#include "base/config.h"
#include "base/env.h"
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "shunt/shunt.h"

#define RETRY_MS 100
#define WAIT_LOG_MS 30000
#define BIND_WAIT_MS 10000

static void id_from_address(struct bootstrap_id *id, const struct shunt_netaddr *addr)
{
	if (addr->ss.ss_family == AF_INET) {
		const struct sockaddr_in *sin = (const struct sockaddr_in *)&addr->ss;

		id->family = 4;
		id->port = sin->sin_port;
		memcpy(id->addr, &sin->sin_addr, 4);
	} else {
		const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)&addr->ss;

		id->family = 6;
		id->port = sin6->sin6_port;
		id->scope = sin6->sin6_scope_id;
		memcpy(id->addr, &sin6->sin6_addr, 16);
	}
}

static void id_to_address(const struct bootstrap_id *id, struct shunt_netaddr *addr)
{
	*addr = (struct shunt_netaddr){ 0 };
	if (id->family == 4) {
		struct sockaddr_in *sin = (struct sockaddr_in *)&addr->ss;

		sin->sin_family = AF_INET;
		sin->sin_port = id->port;
		memcpy(&sin->sin_addr, id->addr, 4);
		addr->len = sizeof(*sin);
	} else {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)&addr->ss;

		sin6->sin6_family = AF_INET6;
		sin6->sin6_port = id->port;
		sin6->sin6_scope_id = id->scope;
		memcpy(&sin6->sin6_addr, id->addr, 16);
		addr->len = sizeof(*sin6);
	}
}

/* Listens on this address only, and stores the port that the kernel has chosen in addr. */
static int listen_at(struct shunt_netaddr *addr, int *fd_p)
{
	int fd = socket(addr->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, err;
	socklen_t len = sizeof(addr->ss);

	if (fd < 0)
		return -errno;
	/* A fixed port must be usable again at once. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&addr->ss, addr->len) || listen(fd, SOMAXCONN) ||
	    getsockname(fd, (struct sockaddr *)&addr->ss, &len)) {
		err = -errno;
		close(fd);
		return err;
	}
	*fd_p = fd;
	return 0;
}

static int id_from_env(const char *text, struct bootstrap_id *id)
{
	struct shunt_netaddr addr;
	uint8_t mac[SHUNT_MAC_BYTES];
	int err = shunt_netif_parse(text, shunt_env("NCCL_SOCKET_FAMILY"), &addr);

	if (err)
		return err;
	id->from_env = 1;
	id_from_address(id, &addr);
	shunt_mac(mac, "shunt NCCL_COMM_ID", 18, "shunt bootstrap secret", text, strlen(text), NULL, 0);
	memcpy(id->secret, mac, sizeof(id->secret));
	return 0;
}

int shunt_bootstrap_new_id(uint8_t out[SHUNT_BOOTSTRAP_ID_BYTES])
{
	const char *fixed = shunt_env("NCCL_COMM_ID");
	struct bootstrap_id id = { .magic = BOOTSTRAP_MAGIC, .version = BOOTSTRAP_VERSION };
	struct shunt_netaddr addr;
	char text[128];
	int fd, err;

	if (fixed && *fixed) {
		err = id_from_env(fixed, &id);
		if (!err)
			memcpy(out, &id, sizeof(id));
		return err;
	}
	err = shunt_netif_select(shunt_env("NCCL_SOCKET_IFNAME"), shunt_env("NCCL_SOCKET_FAMILY"), &addr);
	if (err)
		return err;
	err = listen_at(&addr, &fd);
	shunt_netaddr_show(&addr, text, sizeof(text));
	if (err) {
		errno = -err;
		shunt_error("cannot listen at %s (%s) for the ranks of a new communicator: %m", text, addr.ifname);
		return err;
	}
	id_from_address(&id, &addr);
	err = shunt_random(id.secret, sizeof(id.secret));
	if (err) {
		close(fd);
		return err;
	}
	shunt_host_id(id.host, id.secret, sizeof(id.secret));
	err = shunt_bootstrap_root_start(&id, fd);
	if (err)
		return err;
	shunt_info(SHUNT_LOG_BOOTSTRAP, "bootstrap of a new communicator at %s (%s)", text, addr.ifname);
	memcpy(out, &id, sizeof(id));
	return 0;
}

/*
 * Starts the root in rank 0's process, for an id from NCCL_COMM_ID. The previous communicator's root may still hold the
 * port for a moment.
 */
static int start_env_root(const struct bootstrap_id *id, const atomic_int *cancel)
{
	int64_t deadline = shunt_deadline_ms(BIND_WAIT_MS);
	struct shunt_netaddr addr;
	char text[128];
	int fd, err;

	id_to_address(id, &addr);
	shunt_netaddr_show(&addr, text, sizeof(text));
	while ((err = listen_at(&addr, &fd)) == -EADDRINUSE && shunt_now_ms() < deadline) {
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + RETRY_MS, cancel);
		if (err != -ETIMEDOUT)
			return err;
	}
	if (err) {
		errno = -err;
		shunt_error("cannot listen at %s, where NCCL_COMM_ID wants rank 0: %m", text);
		return err;
	}
	return shunt_bootstrap_root_start(id, fd);
}

/*
 * If no process listens and the kernel happens to choose the very port for our end, the socket is connected to itself.
 * A reset closes it: TIME_WAIT would keep the port from rank 0.
 */
static bool close_if_self_connected(int fd)
{
	struct sockaddr_storage ours = { 0 }, theirs = { 0 };
	socklen_t ours_len = sizeof(ours), theirs_len = sizeof(theirs);
	struct linger reset = { .l_onoff = 1 };

	if (getsockname(fd, (struct sockaddr *)&ours, &ours_len) ||
	    getpeername(fd, (struct sockaddr *)&theirs, &theirs_len) || memcmp(&ours, &theirs, sizeof(ours)))
		return false;
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(fd);
	return true;
}

static int connect_to(const struct shunt_netaddr *addr, const atomic_int *cancel, int *fd_p)
{
	int fd = socket(addr->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err = 0;
	struct pollfd pfd = { .fd = fd, .events = POLLOUT };
	socklen_t len = sizeof(err);

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&addr->ss, addr->len) && errno != EINPROGRESS) {
		err = -errno;
	} else {
		err = shunt_io_poll(&pfd, 1, shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
		if (err > 0)
			err = getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) ? -errno : -err;
	}
	if (err) {
		close(fd);
		return err;
	}
	if (close_if_self_connected(fd))
		return -ECONNREFUSED;
	*fd_p = fd;
	return 0;
}

/* Connects and reads the challenge. */
static int connect_to_root(
    const struct shunt_netaddr *addr, struct bootstrap_challenge *challenge, const atomic_int *cancel, int *fd_p)
{
	int err = connect_to(addr, cancel, fd_p);

	if (err)
		return err;
	err = shunt_io_read(
	    *fd_p, challenge, sizeof(*challenge), shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
	if (err)
		close(*fd_p);
	return err;
}

/*
 * True if no process listens, or the listener closes the connection. This is final for an id that has a root; for an id
 * from NCCL_COMM_ID rank 0 may still come.
 */
static bool root_is_absent(int err)
{
	return err == -ECONNREFUSED || err == -EOWNERDEAD;
}

static int connect_with_retry(
    const struct bootstrap_id *id, struct bootstrap_challenge *challenge, const atomic_int *cancel, int *fd_p)
{
	int64_t start = shunt_now_ms(), next_log = start + WAIT_LOG_MS,
	        end = shunt_deadline_ms(shunt_config()->timeout);
	uint8_t host[SHUNT_HOST_BYTES];
	struct shunt_netaddr addr;
	char text[128];
	int err;

	id_to_address(id, &addr);
	shunt_netaddr_show(&addr, text, sizeof(text));
	while ((err = connect_to_root(&addr, challenge, cancel, fd_p)) && root_is_absent(err) && id->from_env &&
	    shunt_now_ms() < end) {
		if (shunt_now_ms() >= next_log) {
			shunt_warn("still waiting for rank 0 to listen at %s (NCCL_COMM_ID)", text);
			next_log = shunt_now_ms() + (shunt_now_ms() - start);
		}
		err = shunt_io_poll(NULL, 0, shunt_now_ms() + RETRY_MS, cancel);
		if (err != -ETIMEDOUT)
			return err;
	}
	if (!err || err == -ECANCELED)
		return err;
	shunt_host_id(host, id->secret, sizeof(id->secret));
	if (!id->from_env && memcmp(host, id->host, sizeof(host))) {
		shunt_error(
		    "the unique id was made on another host (%s); Shunt without NCCL works on one host only", text);
		return -EXDEV;
	}
	if (root_is_absent(err)) {
		shunt_error("nobody answers for the unique id at %s: it was used already, or the process that made it "
		            "has ended or is in another container",
		    text);
		return id->from_env ? -ETIMEDOUT : -EEXIST;
	}
	errno = -err;
	shunt_error("cannot reach the bootstrap at %s: %m", text);
	return err;
}

/*
 * The root itself reports a time-out, with the missing ranks. A rank waits longer, and only then takes the root for
 * dead.
 */
static int64_t status_deadline(void)
{
	const struct shunt_config *config = shunt_config();

	if (config->timeout <= 0 || config->setup_timeout <= 0)
		return SHUNT_NEVER;
	return shunt_deadline_ms(config->timeout + config->setup_timeout);
}

static int wait_status(
    int fd, const struct bootstrap_id *id, const struct bootstrap_hello *hello, const atomic_int *cancel)
{
	int64_t deadline = status_deadline();
	struct bootstrap_answer answer;
	uint8_t mac[SHUNT_MAC_BYTES];

	for (;;) {
		int err = shunt_io_read(fd, &answer, sizeof(answer), deadline, cancel);

		if (err == -ETIMEDOUT)
			shunt_error("rank %d gave up: the process that serves the bootstrap says nothing (stopped?)",
			    hello->rank);
		if (err == -EOWNERDEAD)
			shunt_error("the process that serves the bootstrap has ended, or refused rank %d", hello->rank);
		if (err)
			return err;
		shunt_mac(mac, id->secret, sizeof(id->secret), "shunt bootstrap answer", hello->nonce,
		    sizeof(hello->nonce), &answer, offsetof(struct bootstrap_answer, mac));
		if (answer.magic != BOOTSTRAP_MAGIC || answer.version != BOOTSTRAP_VERSION || answer.status > 0 ||
		    !shunt_mac_equal(mac, answer.mac)) {
			shunt_error("the bootstrap gave an answer that Shunt's would not give");
			return -EPROTO;
		}
		answer.text[sizeof(answer.text) - 1] = '\0';
		if (answer.kind == BOOTSTRAP_WAIT) {
			shunt_warn("rank %d waits for the other ranks: %s", hello->rank, answer.text);
			continue;
		}
		if (answer.status)
			shunt_error("bootstrap failed: %s", answer.text);
		return answer.status;
	}
}

int shunt_bootstrap_join(
    const uint8_t id_bytes[SHUNT_BOOTSTRAP_ID_BYTES], int rank, int nranks, const atomic_int *cancel)
{
	struct bootstrap_hello hello = { .magic = BOOTSTRAP_MAGIC,
		.version = BOOTSTRAP_VERSION,
		.rank = rank,
		.nranks = nranks,
		.pid = (uint32_t)getpid() };
	struct bootstrap_challenge challenge = { 0 };
	struct bootstrap_id id;
	int fd = -1, err;

	memcpy(&id, id_bytes, sizeof(id));
	if (id.magic != BOOTSTRAP_MAGIC || (id.family != 4 && id.family != 6)) {
		shunt_error("the unique id was not made by Shunt");
		return -EINVAL;
	}
	if (id.version != BOOTSTRAP_VERSION) {
		shunt_error("the unique id was made by another version of Shunt (bootstrap protocol %u, ours is %u)",
		    id.version, BOOTSTRAP_VERSION);
		return -EPROTO;
	}
	if (nranks < 1 || nranks > SHUNT_BOOTSTRAP_MAX_RANKS || rank < 0 || rank >= nranks) {
		shunt_error(
		    "rank %d of %d is out of range (at most %d ranks)", rank, nranks, SHUNT_BOOTSTRAP_MAX_RANKS);
		return -EINVAL;
	}
	err = id.from_env && rank == 0 ? start_env_root(&id, cancel) : 0;
	if (!err)
		err = connect_with_retry(&id, &challenge, cancel, &fd);
	if (err)
		return err;
	if (challenge.magic != BOOTSTRAP_MAGIC || challenge.version != BOOTSTRAP_VERSION) {
		shunt_error("something else than Shunt, or another version of it, answers at the unique id's address");
		err = -EPROTO;
		goto out;
	}
	snprintf(hello.shunt, sizeof(hello.shunt), "%s", SHUNT_VERSION);
	shunt_host_id(hello.host, id.secret, sizeof(id.secret));
	err = shunt_random(hello.nonce, sizeof(hello.nonce));
	if (err)
		goto out;
	shunt_mac(hello.mac, id.secret, sizeof(id.secret), "shunt bootstrap hello", challenge.nonce,
	    sizeof(challenge.nonce), &hello, offsetof(struct bootstrap_hello, mac));
	err = shunt_io_write(fd, &hello, sizeof(hello), shunt_deadline_ms(shunt_config()->setup_timeout), cancel);
	if (!err)
		err = wait_status(fd, &id, &hello, cancel);
out:
	close(fd);
	return err;
}
