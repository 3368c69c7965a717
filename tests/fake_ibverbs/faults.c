/* SPDX-License-Identifier: MIT */
/*
 * The script of FAKE_IBV_FAULTS, lines as
 *     at=WHEN link=HOST:DEVICE[:PORT] action=ACTION
 * WHEN: N, the link's N-th packet (of either direction, lost ones too), or Nms, Ns since the fabric began. ACTION:
 * down, up, flap TIME (down for that long), drop N (packets), corrupt-status NAME-OR-NUMBER (of the next send that
 * completes there), stall TIME (of the device's NICs), kill (processes that have the device open), gid-change, fatal
 * (of the device). Each line acts once in a fabric. Without a port it is port 1. # begins a comment. All processes of a
 * fabric must have the same script.
 */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fake.h"

enum action { NOTHING, DOWN, UP, FLAP, DROP, CORRUPT, STALL, KILL, GID_CHANGE, FATAL };

static const char *const action_names[] = { "", "down", "up", "flap", "drop", "corrupt-status", "stall", "kill",
	"gid-change", "fatal" };

static struct fault {
	uint64_t packet; /* 0: by time */
	int64_t time;    /* ns since the fabric began */
	char host[FABRIC_NAME], device[FABRIC_NAME];
	uint32_t port;
	enum action action;
	int64_t value; /* ns, packets, status */
} faults[FABRIC_FAULTS];
static int n_faults;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* "50ms", "2s": nanoseconds; or -1. */
static int64_t time_of(const char *text)
{
	char *end;
	double n = strtod(text, &end);

	if (end == text)
		return -1;
	return !strcmp(end, "ms") ? (int64_t)(n * 1e6) :
	    !strcmp(end, "s")     ? (int64_t)(n * 1e9) :
	    !strcmp(end, "us")    ? (int64_t)(n * 1e3) :
	                            -1;
}

static int64_t status_of(const char *text)
{
	if (isdigit((unsigned char)*text))
		return atoi(text);
	for (int i = 0; i <= IBV_WC_TM_RNDV_INCOMPLETE; i++)
		if (!strcasecmp(text, ibv_wc_status_str((enum ibv_wc_status)i)))
			return i;
	return -1;
}

static bool parse_action(struct fault *f, const char *name, const char *value)
{
	for (size_t i = 1; i < sizeof(action_names) / sizeof(action_names[0]); i++)
		if (!strcmp(name, action_names[i]))
			f->action = (enum action)i;
	if (f->action == FLAP || f->action == STALL)
		f->value = time_of(value);
	else if (f->action == CORRUPT)
		f->value = status_of(value);
	else if (f->action == DROP)
		f->value = *value ? atoi(value) : 1;
	return f->action != NOTHING && f->value >= 0;
}

static bool parse(struct fault *f, const char *line)
{
	char when[32] = "", link[160] = "", name[32] = "", value[64] = "", *colon;

	if (sscanf(line, " at=%31s link=%159s action=%31s %63[^\n#]", when, link, name, value) < 3)
		return false;
	for (size_t n = strlen(value); n && isspace((unsigned char)value[n - 1]); n--)
		value[n - 1] = '\0';
	f->time = time_of(when);
	if (f->time < 0) {
		f->packet = strtoull(when, NULL, 10);
		if (!f->packet)
			return false;
	}
	colon = strchr(link, ':');
	if (!colon)
		return false;
	*colon++ = '\0';
	snprintf(f->host, sizeof(f->host), "%.63s", link);
	f->port = 1;
	if (strchr(colon, ':')) {
		f->port = (uint32_t)atoi(strchr(colon, ':') + 1);
		*strchr(colon, ':') = '\0';
	}
	snprintf(f->device, sizeof(f->device), "%.63s", colon);
	return parse_action(f, name, value);
}

static void read_script(void)
{
	const char *path = fake_config()->faults;
	FILE *script = *path ? fopen(path, "re") : NULL;
	char line[512];

	if (*path && !script)
		fprintf(stderr, "fake_ibverbs: FAKE_IBV_FAULTS=%s: cannot be read\n", path);
	while (script && fgets(line, sizeof(line), script)) {
		const char *text = line + strspn(line, " \t\n");

		if (!*text || *text == '#')
			continue;
		if (n_faults == FABRIC_FAULTS || !parse(&faults[n_faults], text)) {
			fprintf(stderr, "fake_ibverbs: FAKE_IBV_FAULTS=%s: not a fault: %s", path, text);
			exit(2); /* a test of a fault that never comes would pass */
		}
		n_faults++;
	}
	if (script)
		fclose(script);
}

static struct fabric_port *port_of(const struct fault *f)
{
	for (int i = 0; i < FABRIC_PORTS; i++) {
		struct fabric_port *p = &fabric_get()->ports[i];

		if (!atomic_load(&p->used))
			return NULL;
		if (!strcmp(p->host, f->host) && !strcmp(p->device, f->device) && p->number == f->port)
			return p;
	}
	return NULL;
}

static void act(const struct fault *f, struct fabric_port *p)
{
	int64_t now = fabric_now();

	switch (f->action) {
	case DOWN:
		atomic_store(&p->down, 1);
		break;
	case UP:
		atomic_store(&p->down, 0);
		break;
	case FLAP:
		atomic_store(&p->down_until, now + f->value);
		break;
	case DROP:
		atomic_fetch_add(&p->drop, (uint32_t)f->value);
		break;
	case CORRUPT:
		atomic_store(&p->corrupt, (uint32_t)f->value + 1);
		break;
	case STALL:
		atomic_store(&p->stall_until, now + f->value);
		break;
	case KILL:
		atomic_fetch_add(&p->kills, 1);
		break;
	case GID_CHANGE:
		atomic_fetch_add(&p->gid_changes, 1);
		break;
	case FATAL:
		atomic_fetch_add(&p->fatals, 1);
		break;
	case NOTHING:
		break;
	}
	for (uint32_t i = 0; i < FABRIC_NICS; i++)
		if (atomic_load(&fabric_get()->nics[i].used))
			fabric_ring(i);
}

void fake_faults_due(const struct fabric_port *here, const struct fabric_port *there)
{
	struct fabric *fabric = fabric_get();

	pthread_once(&once, read_script);
	for (int i = 0; i < n_faults; i++) {
		const struct fault *f = &faults[i];
		struct fabric_port *p = atomic_load(&fabric->faults_fired[i]) ? NULL : port_of(f);
		uint32_t no = 0;

		if (!p)
			continue;
		if (f->packet ? atomic_load(&p->packets) + (p == here || p == there) < f->packet :
		                fabric_now() - fabric->began < f->time)
			continue;
		if (atomic_compare_exchange_strong(&fabric->faults_fired[i], &no, 1))
			act(f, p);
	}
}

/* Time at which a line of this process's script acts next. */
static void wake_for_faults(struct fake_nic *nic)
{
	for (int i = 0; i < n_faults; i++)
		if (!faults[i].packet && !atomic_load(&fabric_get()->faults_fired[i]))
			fake_again(nic, fabric_get()->began + faults[i].time);
}

bool fake_faults_look(struct fake_nic *nic, int64_t now)
{
	bool still = false;

	wake_for_faults(nic);
	for (uint32_t i = 0; i < nic->device->spec.ports; i++) {
		struct fabric_port *p = fake_port(nic, i + 1);
		bool up = fabric_up(p, now);
		int64_t until = atomic_load(&p->down_until), stall = atomic_load(&p->stall_until);

		if (atomic_load(&p->kills) != nic->kills[i])
			kill(getpid(), SIGKILL);
		if (up != nic->up[i])
			fake_event_port(nic, i + 1, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
		nic->up[i] = up;
		if (until > now)
			fake_again(nic, until);
		if (atomic_load(&p->gid_changes) != nic->gid_changes[i])
			fake_event_port(nic, i + 1, IBV_EVENT_GID_CHANGE);
		nic->gid_changes[i] = atomic_load(&p->gid_changes);
		if (atomic_load(&p->fatals) != nic->fatals[i]) {
			for (struct fake_qp *qp = nic->qps; qp; qp = qp->next) {
				fake_qp_error(qp);
				fake_event_qp(qp, IBV_EVENT_QP_FATAL);
			}
			fake_event_port(nic, 0, IBV_EVENT_DEVICE_FATAL);
		}
		nic->fatals[i] = atomic_load(&p->fatals);
		if (stall > now) {
			fake_again(nic, stall);
			still = true;
		}
	}
	return still;
}
