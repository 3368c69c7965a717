/* SPDX-License-Identifier: MIT */
/*
 * The script of FAKE_IBV_FAULTS, lines as
 *     at=WHEN [every=WHEN] link=HOST:DEVICE[:PORT] action=ACTION
 * WHEN: N, the link's N-th packet (of either direction, lost ones too), or Nms, Ns since the fabric began. With `every`
 * it acts again so much later, for ever; then HOST may be *, which is another host each time. ACTION:
 * down, up, flap TIME (down for that long), drop N (packets), corrupt-status NAME-OR-NUMBER (of the next send that
 * completes there), stall TIME (of the device's NICs), kill (processes that have the device open), gid-change, fatal
 * (of the device). Without `every` a line acts once in a fabric. Without a port it is port 1. # begins a comment. All
 * processes of a fabric must have the same script.
 *
 * The variable names a file, or has the lines itself, with ; between them. Each time that a line acts, the file of
 * FAKE_IBV_FIRED gets a line: milliseconds since the fabric began, link, action.
 */
#include "tools/common/libc.h"
#include "fake.h"

enum action { NOTHING, DOWN, UP, FLAP, DROP, CORRUPT, STALL, KILL, GID_CHANGE, FATAL };

static const char *const action_names[] = { "", "down", "up", "flap", "drop", "corrupt-status", "stall", "kill",
	"gid-change", "fatal" };

static struct fault {
	uint64_t packet; /* 0: by time */
	int64_t time;    /* ns since the fabric began */
	uint64_t every;  /* packets or ns; 0: once */
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

static bool parse_when(struct fault *f, const char *when, const char *every)
{
	int64_t again = time_of(every);

	f->time = time_of(when);
	f->packet = f->time < 0 ? strtoull(when, NULL, 10) : 0;
	if (f->time < 0 && !f->packet)
		return false;
	f->every = f->packet ? strtoull(every, NULL, 10) : again > 0 ? (uint64_t)again : 0;
	return !*every || (f->every && (again > 0) == !f->packet);
}

static bool parse(struct fault *f, const char *line)
{
	char when[32] = "", every[32] = "", link[160] = "", name[32] = "", value[64] = "", *colon;

	if (sscanf(line, " at=%31s every=%31s link=%159s action=%31s %63[^\n#]", when, every, link, name, value) < 4) {
		*every = '\0';
		if (sscanf(line, " at=%31s link=%159s action=%31s %63[^\n#]", when, link, name, value) < 3)
			return false;
	}
	for (size_t n = strlen(value); n && isspace((unsigned char)value[n - 1]); n--)
		value[n - 1] = '\0';
	if (!parse_when(f, when, every))
		return false;
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
	return parse_action(f, name, value) && (strcmp(f->host, "*") || (f->every && !f->packet));
}

static void add_line(const char *text)
{
	text += strspn(text, " \t\n");
	if (!*text || *text == '#')
		return;
	if (n_faults == FABRIC_FAULTS || !parse(&faults[n_faults], text)) {
		fprintf(stderr, "fake_ibverbs: FAKE_IBV_FAULTS: not a fault: %s\n", text);
		exit(2); /* a test of a fault that never comes would pass */
	}
	n_faults++;
}

static void read_script(void)
{
	const char *path = fake_config()->faults;
	bool is_text = strstr(path, "at=") != NULL;
	FILE *script = *path && !is_text ? fopen(path, "re") : NULL;
	char line[FAKE_SCRIPT], *rest = NULL;

	if (*path && !is_text && !script)
		fprintf(stderr, "fake_ibverbs: FAKE_IBV_FAULTS=%s: cannot be read\n", path);
	while (script && fgets(line, sizeof(line), script))
		add_line(line);
	if (script)
		fclose(script);
	snprintf(line, sizeof(line), "%s", is_text ? path : "");
	for (char *text = strtok_r(line, ";", &rest); text; text = strtok_r(NULL, ";", &rest))
		add_line(text);
}

/* The link of a line that has acted n times. NULL: nobody has opened it yet. */
static struct fabric_port *port_of(const struct fault *f, uint32_t n)
{
	struct fabric_port *found[FABRIC_PORTS];
	uint32_t count = 0;

	for (int i = 0; i < FABRIC_PORTS; i++) {
		struct fabric_port *p = &fabric_get()->ports[i];

		if (!atomic_load(&p->used))
			break;
		if ((!strcmp(f->host, "*") || !strcmp(p->host, f->host)) && !strcmp(p->device, f->device) &&
		    p->number == f->port)
			found[count++] = p;
	}
	return count ? found[n % count] : NULL;
}

static void note(const struct fault *f, const struct fabric_port *p)
{
	const char *path = fake_config()->fired;
	int fd = *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;

	if (fd < 0)
		return;
	dprintf(fd, "%lld %s:%s:%u %s\n", (long long)((fabric_now() - fabric_get()->began) / 1000000), p->host,
	    p->device, p->number, action_names[f->action]);
	close(fd);
}

static void act(const struct fault *f, struct fabric_port *p)
{
	int64_t now = fabric_now();

	note(f, p);
	switch (f->action) {
	case DOWN:
		atomic_store(&p->down, 1);
		atomic_fetch_add(&p->downs, 1);
		break;
	case UP:
		atomic_store(&p->down, 0);
		break;
	case FLAP:
		atomic_store(&p->down_until, now + f->value);
		atomic_fetch_add(&p->downs, 1);
		break;
	case DROP:
		/* The next so many, and not more for a port that has sent none since the last time. */
		atomic_store(&p->drop, (uint32_t)f->value);
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

/* When line i acts next, which goes by time. */
static int64_t due_at(int i)
{
	int64_t next = atomic_load(&fabric_get()->faults_next[i]);

	return fabric_get()->began + (next ? next : faults[i].time);
}

/* False: another process was faster. n: how often the line has acted. */
static bool take_turn(int i, uint32_t n, int64_t now)
{
	struct fabric *fabric = fabric_get();

	if (!atomic_compare_exchange_strong(&fabric->faults_fired[i], &n, n + 1))
		return false;
	/* Not one turn after the other for the time in which nobody was here. */
	if (faults[i].every && !faults[i].packet)
		atomic_store(&fabric->faults_next[i], now - fabric->began + (int64_t)faults[i].every);
	return true;
}

void fake_faults_due(const struct fabric_port *here, const struct fabric_port *there)
{
	struct fabric *fabric = fabric_get();
	int64_t now = fabric_now();

	pthread_once(&once, read_script);
	for (int i = 0; i < n_faults; i++) {
		const struct fault *f = &faults[i];
		uint32_t n = atomic_load(&fabric->faults_fired[i]);
		struct fabric_port *p;

		if ((n && !f->every) || (!f->packet && now < due_at(i)))
			continue;
		p = port_of(f, n);
		if (!p ||
		    (f->packet && atomic_load(&p->packets) + (p == here || p == there) < f->packet + n * f->every))
			continue;
		if (take_turn(i, n, now))
			act(f, p);
	}
}

/* Time at which a line of this process's script acts next. */
static void wake_for_faults(struct fake_nic *nic)
{
	for (int i = 0; i < n_faults; i++) {
		uint32_t n = atomic_load(&fabric_get()->faults_fired[i]);

		if (!faults[i].packet && (!n || faults[i].every))
			fake_again(nic, due_at(i));
	}
}

bool fake_faults_look(struct fake_nic *nic, int64_t now)
{
	bool still = false;

	wake_for_faults(nic);
	for (uint32_t i = 0; i < nic->device->spec.ports; i++) {
		struct fabric_port *p = fake_port(nic, i + 1);
		/* Counted, for a NIC that had no turn while the link was away. */
		uint32_t downs = atomic_load(&p->downs);
		bool up = downs == nic->downs[i] && fabric_up(p, now);
		int64_t until = atomic_load(&p->down_until), stall = atomic_load(&p->stall_until);

		if (atomic_load(&p->kills) != nic->kills[i])
			kill(getpid(), SIGKILL);
		if (up != nic->up[i])
			fake_event_port(nic, i + 1, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
		nic->up[i] = up;
		if (downs != nic->downs[i])
			fake_again(nic, now);
		nic->downs[i] = downs;
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
