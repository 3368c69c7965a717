/* SPDX-License-Identifier: MIT */
/* Proofs of knowledge of the key: keyed hashes of the other side's nonce and the message. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/host.h"
#include "base/os.h"
#include "transport/rendezvous/wire/wire.h"

struct rdzv_key rdzv_key(const void *secret, size_t bytes)
{
	struct rdzv_key key = { .n = bytes < sizeof(key.bytes) ? bytes : sizeof(key.bytes) };

	memcpy(key.bytes, secret, key.n);
	return key;
}

int rdzv_hello_init(struct rdzv_hello *hello, enum rdzv_kind kind, const struct rdzv_key *key)
{
	int err;

	*hello = (struct rdzv_hello){ .head = rdzv_head(kind), .pid = (uint32_t)getpid() };
	snprintf(hello->shunt, sizeof(hello->shunt), "%s", SHUNT_VERSION);
	err = shunt_host_id(hello->host, key->bytes, key->n);
	return err ? err : shunt_random(hello->nonce, sizeof(hello->nonce));
}

static void mac_hello(uint8_t mac[SHUNT_MAC_BYTES], const struct rdzv_hello *hello, const struct rdzv_key *key,
    const uint8_t nonce[RDZV_NONCE])
{
	shunt_mac(mac, shunt_bytes(key->bytes, key->n), "shunt rdzv hello", shunt_bytes(nonce, RDZV_NONCE),
	    shunt_bytes(hello, offsetof(struct rdzv_hello, mac)));
}

void rdzv_hello_sign(struct rdzv_hello *hello, const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE])
{
	mac_hello(hello->mac, hello, key, nonce);
}

bool rdzv_hello_proves(const struct rdzv_hello *hello, const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE])
{
	uint8_t mac[SHUNT_MAC_BYTES];

	mac_hello(mac, hello, key, nonce);
	return hello->head.magic == RDZV_MAGIC && (hello->head.kind == RDZV_HELLO || hello->head.kind == RDZV_WATCH) &&
	    shunt_mac_equal(mac, hello->mac);
}

static void mac_rows(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_rendezvous_row *rows, size_t nrows,
    const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE])
{
	shunt_mac(mac, shunt_bytes(key->bytes, key->n), "shunt rdzv rows", shunt_bytes(nonce, RDZV_NONCE),
	    shunt_bytes(rows, nrows * sizeof(*rows)));
}

static void mac_answer(uint8_t mac[SHUNT_MAC_BYTES], const struct rdzv_answer *answer, const struct rdzv_key *key,
    const uint8_t nonce[RDZV_NONCE])
{
	shunt_mac(mac, shunt_bytes(key->bytes, key->n), "shunt rdzv answer", shunt_bytes(nonce, RDZV_NONCE),
	    shunt_bytes(answer, offsetof(struct rdzv_answer, mac)));
}

void rdzv_answer_sign(struct rdzv_answer *answer, const struct shunt_rendezvous_row *rows, const struct rdzv_key *key,
    const uint8_t nonce[RDZV_NONCE])
{
	mac_rows(answer->rows_mac, rows, answer->nrows, key, nonce);
	mac_answer(answer->mac, answer, key, nonce);
}

bool rdzv_answer_proves(const struct rdzv_answer *answer, const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE])
{
	uint8_t mac[SHUNT_MAC_BYTES];

	mac_answer(mac, answer, key, nonce);
	return (rdzv_head_is(&answer->head, RDZV_WAIT) || rdzv_head_is(&answer->head, RDZV_DONE)) &&
	    answer->status <= 0 && shunt_mac_equal(mac, answer->mac);
}

bool rdzv_rows_prove(const struct rdzv_answer *answer, const struct shunt_rendezvous_row *rows,
    const struct rdzv_key *key, const uint8_t nonce[RDZV_NONCE])
{
	uint8_t mac[SHUNT_MAC_BYTES];

	mac_rows(mac, rows, answer->nrows, key, nonce);
	return shunt_mac_equal(mac, answer->rows_mac);
}

void rdzv_session(uint8_t session[RDZV_SECRET], const struct rdzv_key *key, const uint8_t root_nonce[RDZV_NONCE],
    const uint8_t member_nonce[RDZV_NONCE])
{
	uint8_t mac[SHUNT_MAC_BYTES];

	shunt_mac(mac, shunt_bytes(key->bytes, key->n), "shunt rdzv session", shunt_bytes(root_nonce, RDZV_NONCE),
	    shunt_bytes(member_nonce, RDZV_NONCE));
	memcpy(session, mac, RDZV_SECRET);
}

void rdzv_message_mac(
    uint8_t mac[SHUNT_MAC_BYTES], const uint8_t session[RDZV_SECRET], struct shunt_bytes head, struct shunt_bytes body)
{
	shunt_mac(mac, shunt_bytes(session, RDZV_SECRET), "shunt rdzv message", head, body);
}
