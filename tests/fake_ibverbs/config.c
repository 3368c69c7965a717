/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <sys/utsname.h>
#include "tools/common/libc.h"
#include "fake.h"

static struct fake_config config;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void knob(const char *name, struct fake_knob *k, uint64_t otherwise)
{
	const char *text = getenv(name), *at = text ? strchr(text, '@') : NULL;
	uint64_t seed = at ? strtoull(at + 1, NULL, 0) : number("FAKE_IBV_SEED", 1);

	k->value = number(name, otherwise);
	atomic_store(&k->seed, seed);
}

static void text(char *to, size_t bytes, const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	snprintf(to, bytes, "%s", value ? value : otherwise);
}

static void own_host(char *to, size_t bytes)
{
	const char *named = getenv("SHUNT_HOSTID");
	struct utsname name = { 0 };

	(void)uname(&name);
	snprintf(to, bytes, "%.*s", (int)bytes - 1, named ? named : name.nodename);
}

static void read_config(void)
{
	char ordering[32];

	knob("FAKE_IBV_LATE_READ_US", &config.late_read_us, 0);
	knob("FAKE_IBV_PIECE_US", &config.piece_us, 0);
	knob("FAKE_IBV_PARK_US", &config.park_us, 100000);
	knob("FAKE_IBV_CQ_DELAY_US", &config.cq_delay_us, 0);
	knob("FAKE_IBV_CQ_PERIOD_US", &config.cq_period_us, 0);
	knob("FAKE_IBV_DROP", &config.drop, 0);
	knob("FAKE_IBV_RNR", &config.rnr, 0);
	knob("FAKE_IBV_ACCESS_ERRORS", &config.access_errors, 0);
	text(ordering, sizeof(ordering), "FAKE_IBV_ORDERING", "");
	config.by_polls = number("FAKE_IBV_BY_POLLS", 0) != 0;
	config.park_all = !strcmp(ordering, "none-all");
	config.park = config.park_all || !strcmp(ordering, "none");
	config.peermem = number("FAKE_IBV_PEERMEM", 0) != 0;
	config.memlock = number("FAKE_IBV_MEMLOCK", 0);
	config.time_scale = number("FAKE_IBV_TIME_SCALE", 1);
	if (!config.time_scale)
		config.time_scale = 1;
	config.timeout_min_ms = number("FAKE_IBV_TIMEOUT_MIN_MS", 400);
	text(config.host, sizeof(config.host), "FAKE_IBV_HOST", "host0");
	if (!strcmp(config.host, "%h"))
		own_host(config.host, sizeof(config.host));
	text(config.hide, sizeof(config.hide), "FAKE_IBV_HIDE", "");
	text(config.device_maps, sizeof(config.device_maps), "FAKE_IBV_DEVICE_MAPS", "");
	text(config.faults, sizeof(config.faults), "FAKE_IBV_FAULTS", "");
	text(config.fired, sizeof(config.fired), "FAKE_IBV_FIRED", "");
	text(config.sysfs, sizeof(config.sysfs), "SHUNT_SYSFS_ROOT", "");
}

const struct fake_config *fake_config(void)
{
	pthread_once(&once, read_config);
	return &config;
}

uint64_t fake_random(const struct fake_knob *k, uint64_t n)
{
	uint64_t x = atomic_fetch_add_explicit(
	    (_Atomic uint64_t *)&k->seed, 0x9e3779b97f4a7c15, memory_order_relaxed); /* splitmix64 */

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	x ^= x >> 31;
	return n ? x % n : 0;
}

bool fake_chance(const struct fake_knob *k)
{
	return k->value && fake_random(k, 1000) < k->value;
}

bool fake_hidden(const char *name)
{
	const char *at = fake_config()->hide;
	size_t n = strlen(name);

	for (; (at = strstr(at, name)); at += n)
		if ((at == fake_config()->hide || at[-1] == ',') && (at[n] == ',' || !at[n]))
			return true;
	return false;
}

/* "v2@10.0.0.1": an IPv4 address becomes one mapped into IPv6. */
static int parse_gid(struct fake_spec *s, int index, char *value)
{
	static const struct {
		const char *name;
		uint32_t type;
	} types[] = { { "ib", GID_IB }, { "v1", GID_ROCE_V1 }, { "v2", GID_ROCE_V2 } };
	char *address = strchr(value, '@');
	union ibv_gid *gid = &s->gids[index].gid;

	if (!strcmp(value, "none"))
		return 0;
	if (!address)
		return -EINVAL;
	*address++ = '\0';
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(value, types[i].name))
			s->gids[index].type = types[i].type;
	if (!s->gids[index].type)
		return -EINVAL;
	if (inet_pton(AF_INET6, address, gid->raw) == 1)
		return 0;
	memset(gid->raw, 0, 10);
	memset(gid->raw + 10, 0xff, 2);
	return inet_pton(AF_INET, address, gid->raw + 12) == 1 ? 0 : -EINVAL;
}

static int parse_list(struct fake_spec *s, bool gids, char *value)
{
	char *rest = NULL;
	int n = 0;

	if (gids)
		memset(s->gids, 0, sizeof(s->gids));
	else
		memset(s->pkeys, 0, sizeof(s->pkeys));
	for (char *v = strtok_r(value, ",", &rest); v; v = strtok_r(NULL, ",", &rest), n++) {
		if (n == (gids ? FABRIC_GIDS : FABRIC_PKEYS))
			return -E2BIG;
		if (!gids)
			s->pkeys[n] = (uint32_t)strtoul(v, NULL, 0);
		else if (parse_gid(s, n, v))
			return -EINVAL;
	}
	return 0;
}

/* One of the words of a value: its index, or a negative errno. */
static int one_of(const char *value, const char *const *words)
{
	for (int i = 0; words[i]; i++)
		if (!strcmp(value, words[i]))
			return i;
	return -EINVAL;
}

static int parse_word(struct fake_spec *s, const char *key, char *value, uint32_t *to_p)
{
	static const char *const links[] = { "", "ib", "roce", NULL };
	static const char *const atomics[] = { "none", "hca", "glob", NULL };
	static const char *const states[] = { "", "down", "init", "armed", "active", NULL };
	const char *const *words = !strcmp(key, "link") ? links : !strcmp(key, "atomic") ? atomics : states;
	int i = one_of(value, words);

	if (i < 0)
		return i;
	*to_p = (uint32_t)i;
	return 0;
}

static int parse_setting(struct fake_spec *s, const char *key, char *value)
{
	const struct {
		const char *key;
		uint32_t *to;
	} numbers[] = { { "ports", &s->ports }, { "mtu", &s->mtu }, { "dmabuf", &s->dmabuf },
		{ "inline", &s->inline_max }, { "depth", &s->depth }, { "sges", &s->sges }, { "rd", &s->reads },
		{ "cqes", &s->cqes }, { "sls", &s->sls }, { "guid", &s->guid } };

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!strcmp(key, numbers[i].key)) {
			*numbers[i].to = (uint32_t)strtoul(value, NULL, 0);
			return 0;
		}
	if (!strcmp(key, "link"))
		return parse_word(s, key, value, &s->link_layer);
	if (!strcmp(key, "atomic"))
		return parse_word(s, key, value, &s->atomics);
	if (!strcmp(key, "state"))
		return parse_word(s, key, value, &s->state);
	if (!strcmp(key, "gids") || !strcmp(key, "pkeys"))
		return parse_list(s, *key == 'g', value);
	if (!strcmp(key, "numa"))
		s->numa = atoi(value);
	else if (!strcmp(key, "speed"))
		s->speed = strtoull(value, NULL, 0);
	else if (!strcmp(key, "pci"))
		snprintf(s->pci, sizeof(s->pci), "%s", value);
	else if (!strcmp(key, "path"))
		snprintf(s->path, sizeof(s->path), "%s", value);
	else if (!strcmp(key, "ece"))
		return sscanf(value, "%i:%i", (int *)&s->ece_vendor, (int *)&s->ece_options) >= 1 ? 0 : -EINVAL;
	else
		return -ENOENT;
	return 0;
}

static uint32_t hash(const char *s)
{
	uint32_t h = 2166136261u;

	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 16777619u;
	return h;
}

/* Addresses that no other host or device of the fabric has, unless names collide. */
static void default_gids(struct fake_spec *s, int index)
{
	uint32_t host = hash(fake_config()->host);
	bool roce = s->link_layer == 2;

	for (int i = 0; i < (roce ? 4 : 1); i++) {
		uint8_t *raw = s->gids[i].gid.raw;

		s->gids[i].type = !roce ? GID_IB : i % 2 ? GID_ROCE_V2 : GID_ROCE_V1;
		raw[0] = 0xfe;
		raw[1] = 0x80;
		raw[8] = 0x02;
		memcpy(raw + 9, &host, 4);
		raw[13] = (uint8_t)s->guid;
		raw[15] = (uint8_t)index;
		if (i >= 2) {
			memset(raw, 0, 16);
			memset(raw + 10, 0xff, 2);
			raw[12] = 10;
			raw[13] = (uint8_t)(host >> 8);
			raw[14] = (uint8_t)host;
			raw[15] = (uint8_t)(index + 1);
		}
	}
}

static int parse_spec(struct fake_spec *s, int index, char *line)
{
	char *rest = NULL, *word = strtok_r(line, " \t\n", &rest);

	*s = (struct fake_spec){ .ports = 1,
		.link_layer = 1,
		.mtu = 4096,
		.atomics = 1,
		.dmabuf = 1,
		.ece_vendor = 0x15b3,
		.ece_options = 0xff,
		.inline_max = 256,
		.depth = 8192,
		.sges = 30,
		.reads = 16,
		.cqes = 65536,
		.state = 4,
		.sls = 0xff,
		.guid = 1,
		.speed = 4000,
		.pkeys = { 0xffff } };
	snprintf(s->name, sizeof(s->name), "%s", word ? word : "");
	snprintf(s->pci, sizeof(s->pci), "0000:%02x:00.0", 0x10 + index);
	snprintf(s->path, sizeof(s->path), "pci0000:00/0000:00:%02x.0", index + 1);
	if (!word)
		return -EINVAL;
	while ((word = strtok_r(NULL, " \t\n", &rest))) {
		char *value = strchr(word, '=');
		int err = value ? 0 : -EINVAL;

		if (value)
			*value++ = '\0';
		if (!err)
			err = parse_setting(s, word, value);
		if (err) {
			fprintf(
			    stderr, "fake_ibverbs: FAKE_IBV_DEVICES: %s of %s: %s\n", word, s->name, strerror(-err));
			return err;
		}
	}
	if (!s->gids[0].type && !s->gids[1].type)
		default_gids(s, index);
	if (s->ports < 1 || s->ports > FAKE_PORTS || s->sges < 1 || s->sges > FAKE_SGES ||
	    s->inline_max > FAKE_INLINE || s->mtu < 256 || s->mtu > FABRIC_MTU || s->mtu & (s->mtu - 1) || !s->depth) {
		fprintf(stderr, "fake_ibverbs: FAKE_IBV_DEVICES: %s: a number is out of range\n", s->name);
		return -ERANGE;
	}
	return 0;
}

int fake_specs(struct fake_spec specs[FAKE_DEVICES])
{
	const char *value = getenv("FAKE_IBV_DEVICES");
	char *copy = strdup(value ? value : "mlx0"), *rest = NULL;
	int n = 0, err = copy ? 0 : -ENOMEM;

	for (char *line = copy ? strtok_r(copy, ";", &rest) : NULL; line && !err; line = strtok_r(NULL, ";", &rest)) {
		if (!line[strspn(line, " \t\n")])
			continue;
		err = n == FAKE_DEVICES ? -E2BIG : parse_spec(&specs[n], n, line);
		n++;
	}
	free(copy);
	return err ? err : n;
}

union ibv_gid fake_spec_gid(const struct fake_spec *s, uint32_t port, uint32_t index)
{
	union ibv_gid gid = s->gids[index].gid;

	if (s->gids[index].type)
		gid.raw[15] = (uint8_t)(gid.raw[15] + 32 * (port - 1));
	return gid;
}
