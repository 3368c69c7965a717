/* SPDX-License-Identifier: MIT */
/* `shunt doctor job`: the processes of this host, asked twice. */
#include "tools/common/libc.h"
#include "tools/doctor/doctor.h"

#define SAME_NS 500000000 /* times that differ by less are one */

int doctor_directory_create(const char *option, const char *dir)
{
	struct stat st;
	int err = mkdir(dir, 0700) && errno != EEXIST ? errno :
	    stat(dir, &st)                            ? errno :
	    S_ISDIR(st.st_mode)                       ? 0 :
	                                                ENOTDIR;

	if (err)
		tool_error("%s: %s: %s", option, dir, strerror(err));
	return -err;
}

/* As this process sees it, or else as it does itself. */
static int pid_of(const struct ask_process *p)
{
	return (int)(p->pid ? p->pid : p->ns_pid);
}

/* Saves an unchanged dump, readable by its owner only. */
static int dump_save(
    const char *dir, const char *occasion, const struct dump_process *p, const struct ask_process *answer)
{
	char path[PATH_MAX];
	struct tool_file f;
	mode_t before;
	int err;

	/* The host's name comes from the process and may contain anything, also slashes. */
	snprintf(path, sizeof(path), "%s/shunt-%.*s-%d-%s.json", dir, (int)strcspn(p->host, "/"), p->host,
	    pid_of(answer), occasion);
	before = umask(077);
	err = tool_file_replace(&f, path);
	umask(before);
	if (err)
		return -EIO;
	fwrite(answer->text, 1, answer->bytes, f.out);
	return tool_file_end(&f, 0) ? -EIO : 0;
}

int doctor_answer_add(struct dumps *d, const struct ask_process *p, const char *dir, const char *occasion)
{
	size_t had = d->n;
	char name[32];
	int err;

	snprintf(name, sizeof(name), "process %d", pid_of(p));
	err = dumps_add(d, name, p->text, p->bytes);
	return err || !dir || d->n == had ? err : dump_save(dir, occasion, d->processes[had], p);
}

/* ---- two looks */

static const struct dump_process *process_find(const struct dumps *d, const struct dump_process *p)
{
	for (size_t i = 0; i < d->n; i++)
		if (d->processes[i]->pid == p->pid && d->processes[i]->pid_namespace == p->pid_namespace &&
		    !strcmp(d->processes[i]->host, p->host))
			return d->processes[i];
	return NULL;
}

static struct dump_comm *comm_find(const struct dump_process *p, const struct dump_comm *c)
{
	for (size_t i = 0; p && i < p->ncomms; i++)
		if (p->comms[i].rank == c->rank && !strcmp(p->comms[i].key, c->key))
			return &p->comms[i];
	return NULL;
}

static bool comm_has_moved(const struct dump_comm *a, const struct dump_comm *b)
{
	bool device_moved = !a->silent && !b->silent && /* a silent device has not told how far it is */
	    (a->replays != b->replays || a->last != b->last || a->running != b->running);

	/* The time of day and the other clock are read one after the other. */
	bool began_again =
	    a->phase_time_ns + SAME_NS < b->phase_time_ns || b->phase_time_ns + SAME_NS < a->phase_time_ns;

	return a->calls != b->calls || device_moved || a->nccl_finished != b->nccl_finished ||
	    strcmp(a->state, b->state) || strcmp(a->phase, b->phase) || strcmp(a->error, b->error) || began_again;
}

static struct dump_wait waited_between(const struct dump_comm *before, const struct dump_comm *now)
{
	struct dump_wait w = { .rank = -1 };
	uint64_t most = 0, time;

	if (!before || !now || now->process->time_ns <= before->process->time_ns)
		return w;
	time = now->process->time_ns - before->process->time_ns;
	for (size_t r = 0; r < now->nwaits && r < before->nwaits; r++)
		if (now->waits[r] > before->waits[r] && now->waits[r] - before->waits[r] > most) {
			most = now->waits[r] - before->waits[r];
			w.rank = (int)r;
		}
	w.percent = most < time ? (unsigned)(100 * (double)most / (double)time) : 100;
	return w;
}

void doctor_moved_mark(struct dumps *d, const struct dumps *before)
{
	for (size_t p = 0; p < d->n; p++)
		for (size_t i = 0; i < d->processes[p]->ncomms; i++) {
			struct dump_comm *c = &d->processes[p]->comms[i];
			const struct dump_comm *old = comm_find(process_find(before, d->processes[p]), c);

			c->moved = !old || comm_has_moved(old, c);
			c->waited = waited_between(old, c);
			c->new_calls = old && c->calls > old->calls ? c->calls - old->calls : 0;
		}
	for (size_t p = 0; p < before->n; p++)
		for (size_t i = 0; i < before->processes[p]->ncomms; i++) {
			const struct dump_comm *old = &before->processes[p]->comms[i];
			const struct dump_process *now = process_find(d, before->processes[p]);

			for (size_t q = 0; now && !comm_find(now, old) && q < d->n; q++)
				for (size_t k = 0; k < d->processes[q]->ncomms; k++)
					d->processes[q]->comms[k].moved |=
					    !strcmp(d->processes[q]->comms[k].key, old->key);
		}
}

/*
 * A process that ends closes its socket, and breaks off connections to it. had_answered: it was a process of Shunt's;
 * of others the process tells.
 */
static bool has_ended(const struct ask_process *p, bool had_answered)
{
	struct ask_process now;
	bool is_closed = p->err == -ECONNREFUSED || p->err == -ECONNRESET;

	if (!is_closed || p->state == 'Z')
		return false;
	return (had_answered && p->err == -ECONNREFUSED) || ask_process_read(pid_of(p), &now) || now.state == 'Z';
}

void doctor_look_first(struct look *look)
{
	ask_all(look->processes, look->n, "state");
	/* Those that have not answered come first, and are not asked again: a second wait would tell no more. */
	for (size_t i = 0; i < look->n; i++) {
		int err = look->processes[i].err;

		if (!err && !doctor_answer_add(&look->before, &look->processes[i], NULL, ""))
			continue;
		ask_put_first(look->processes, i, &look->silent);
		look->waits |= err == -ECONNRESET; /* until it is seen whether it ends */
	}
	look->waits |= look->silent < look->n;
}

void doctor_look_again(struct look *look)
{
	ask_all(look->processes + look->silent, look->n - look->silent, look->request);
	for (size_t i = 0; i < look->n; i++) {
		const struct ask_process *p = &look->processes[i];

		if (has_ended(p, i >= look->silent))
			finding_add(look->f, FINDING_INFO, "processes", "", "process %d (%s) has ended meanwhile",
			    pid_of(p), p->name);
		else if (p->err)
			doctor_silence_explain(look->f, p);
		else if (i < look->silent)
			finding_add(look->f, FINDING_ERROR, "processes", "",
			    "process %d answered with what is no dump that this command reads", pid_of(p));
		else if (doctor_answer_add(&look->now, p, look->output, "asked") == -EIO)
			look->unkept = true;
	}
}

void doctor_look_finish(struct look *look)
{
	dumps_finish(&look->before);
	dumps_finish(&look->now);
	ask_free(look->processes, look->n);
}

void doctor_look_sleep(unsigned seconds)
{
	nanosleep(&(struct timespec){ seconds }, NULL);
}

/* ---- jobs */

static bool share_a_communicator(const struct dump_process *a, const struct dump_process *b)
{
	for (size_t i = 0; i < a->ncomms; i++)
		for (size_t k = 0; k < b->ncomms; k++)
			if (!strcmp(a->comms[i].key, b->comms[k].key))
				return true;
	return false;
}

void doctor_jobs_find(const struct dumps *d, size_t *job)
{
	for (size_t i = 0; i < d->n; i++) {
		job[i] = i;
		for (size_t k = 0; k < i; k++) {
			size_t from = job[i], to = job[k];

			if (from == to || !share_a_communicator(d->processes[i], d->processes[k]))
				continue;
			for (size_t p = 0; p <= i; p++)
				if (job[p] == (from > to ? from : to))
					job[p] = from < to ? from : to;
		}
	}
}

struct job_opts {
	struct ranks_opts ranks; /* the hosts under a launcher; the first member */
	bool json, here, answers, namespaces;
	const char *output, *key;
	unsigned rank_of, wait, timeout;
};

static bool is_wanted(const struct dump_process *p, const struct job_opts *o)
{
	bool wanted = !o->rank_of && !o->key;

	wanted |= o->rank_of && p->pid == (int)o->rank_of;
	for (size_t i = 0; o->key && i < p->ncomms; i++)
		wanted |= !strncmp(p->comms[i].key, o->key, strlen(o->key)) ||
		    !strncmp(p->comms[i].id, o->key, strlen(o->key));
	return wanted;
}

static size_t communicators_count(const struct dumps *d, const char **id_p)
{
	size_t count = 0;
	int most = 0;

	*id_p = "";
	for (size_t p = 0; p < d->n; p++)
		for (size_t i = 0; i < d->processes[p]->ncomms; i++) {
			const struct dump_comm *c = &d->processes[p]->comms[i];
			bool is_new = true;

			for (size_t q = 0; q < p && is_new; q++)
				for (size_t k = 0; k < d->processes[q]->ncomms; k++)
					is_new = is_new && strcmp(d->processes[q]->comms[k].key, c->key);
			count += is_new;
			if (c->nranks > most)
				*id_p = c->id;
			most = c->nranks > most ? c->nranks : most;
		}
	return count;
}

/* d: the processes of one job. */
static void job_check(struct findings *f, const struct dumps *d)
{
	char pids[256];
	size_t used = 0;
	const char *id;
	size_t count = communicators_count(d, &id);

	for (size_t i = 0; i < d->n && used + 16 < sizeof(pids); i++)
		used += (size_t)snprintf(pids + used, sizeof(pids) - used, "%s%d", i ? ", " : "", d->processes[i]->pid);
	finding_add(f, FINDING_OK, "jobs", "", "job %s: %zu process%s of %s (pid %s%s), %zu communicator%s", id, d->n,
	    d->n == 1 ? "" : "es", d->processes[0]->program, pids, used + 16 < sizeof(pids) ? "" : ", ...", count,
	    count == 1 ? "" : "s");
	doctor_hangs(f, d);
}

static void jobs_check(struct findings *f, const struct dumps *d, const struct job_opts *o)
{
	struct dumps one = { calloc(d->n + 1, sizeof(*one.processes)), 0 };
	size_t *job = calloc(d->n + 1, sizeof(*job)), found = 0;

	if (!one.processes || !job) {
		f->failed = true;
		goto out;
	}
	doctor_jobs_find(d, job);
	for (size_t first = 0; first < d->n; first++) {
		bool wanted = false;

		one.n = 0;
		for (size_t i = first; i < d->n && job[first] == first; i++)
			if (job[i] == first) {
				wanted |= is_wanted(d->processes[i], o);
				one.processes[one.n++] = d->processes[i];
			}
		if (!wanted)
			continue;
		found++;
		job_check(f, &one);
	}
	if (!found)
		finding_add(f, FINDING_WARN, "jobs", "`shunt doctor job` shows all",
		    "no process that answers here has that communicator or number");
out:
	free(one.processes);
	free(job);
}

static int report(struct look *look, const struct job_opts *o)
{
	int status;

	doctor_moved_mark(&look->now, &look->before);
	if (look->now.n)
		jobs_check(look->f, &look->now, o);
	else if (!look->f->n)
		finding_add(look->f, FINDING_WARN, "jobs",
		    "they have no communicator yet, run without Shunt or with SHUNT_DOCTOR=0, belong to another user, "
		    "or are in "
		    "a container with another network: --namespaces (root), or ask from inside that",
		    "no process here has a socket of Shunt");
	status = findings_print(look->f, o->json);
	return look->unkept ? TOOL_USAGE : status;
}

/* One host under a launcher: all look at one time, and rank 0 tells of all. */
static int host_main(const void *arg, const struct ranks_slot *slot)
{
	const struct job_opts *o = arg;
	struct findings f = { 0 };
	struct look look = { .f = &f, .request = "state 64", .output = o->output };
	struct ranks *ranks = NULL;
	int status = ask_find(o->namespaces, &look.processes, &look.n), err;

	if (status)
		finding_add(&f, FINDING_ERROR, "processes", "", "/proc/net/unix: %s", strerror(-status));
	ranks_progress_set(slot->progress, RANKS_RENDEZVOUS, -1, -1);
	err = ranks_join(slot->shared, o->ranks.worker_fd, slot->rank, o->timeout, &ranks);
	doctor_look_first(&look);
	err = err ? err : ranks_barrier(ranks);
	doctor_look_sleep(o->wait);
	doctor_look_again(&look);
	err = err ? err : doctor_hosts_gather(ranks, slot, &look);
	if (err)
		finding_add(&f, FINDING_WARN, "hosts", "--here asks this host alone, without that wait",
		    "the launcher's other processes did not come or went away (%s): this is what is known here",
		    strerror(-err));
	status = err || !slot->rank ? report(&look, o) : look.unkept ? TOOL_USAGE : TOOL_OK;
	ranks_progress_set(slot->progress, RANKS_DONE, -1, -1);
	ranks_leave(ranks);
	doctor_look_finish(&look);
	findings_finish(&f);
	return status;
}

static int here_main(const struct job_opts *o)
{
	struct findings f = { 0 };
	struct look look = { .f = &f, .request = o->answers ? "state 64" : "dump", .output = o->output };
	int status = ask_find(o->namespaces, &look.processes, &look.n);

	if (status) {
		tool_error("/proc/net/unix: %s", strerror(-status));
		return TOOL_USAGE;
	}
	doctor_look_first(&look);
	if (look.waits)
		doctor_look_sleep(o->wait);
	doctor_look_again(&look);
	status = o->answers ? doctor_answers_print(&look) : report(&look, o);
	doctor_look_finish(&look);
	findings_finish(&f);
	return status;
}

static int files_main(const struct job_opts *o, char **files)
{
	struct findings f = { 0 };
	struct look look = { .f = &f };
	int status = TOOL_USAGE;

	while (*files && !doctor_answers_file(&look, *files))
		files++;
	if (!*files)
		status = report(&look, o);
	doctor_look_finish(&look);
	findings_finish(&f);
	return status;
}

#define AT(field) .at = offsetof(struct job_opts, field)
static const struct option_row rows[] = {
	{ "rank-of", 0, OPTION_NUMBER, "PID", offsetof(struct job_opts, rank_of), 1, 1u << 30,
	    .help = "only the job that this process is in" },
	{ "key", 0, OPTION_TEXT, "KEY", AT(key),
	    .help = "only the job that has this communicator: its key, or its name in the log" },
	{ "wait", 0, OPTION_NUMBER, "S", offsetof(struct job_opts, wait), 1, 3600,
	    .help = "seconds between the two looks (1)" },
	{ "output", 'o', OPTION_TEXT, "DIR", AT(output), .help = "keeps the processes' dumps there" },
	{ "json", 0, OPTION_FLAG, AT(json), .help = "findings as JSON" },
	{ "answers", 0, OPTION_FLAG, AT(answers),
	    .help = "prints what the processes here answer, as one line for `shunt doctor job FILE...`" },
	{ "namespaces", 0, OPTION_FLAG, AT(namespaces),
	    .help = "also the processes in other network namespaces of this host, such as containers (root)" },
	{ "here", 0, OPTION_FLAG, AT(here), .help = "this host alone, also under a launcher" },
	{ "timeout", 0, OPTION_NUMBER, "S", offsetof(struct job_opts, timeout), 1, 3600,
	    .help = "under a launcher: for its other processes to come (30)" },
	{ "rendezvous", 0, OPTION_TEXT, "DIR", offsetof(struct ranks_opts, rendezvous),
	    .help = "under mpirun or srun: a directory that all hosts see" },
	{ "worker", 0, OPTION_CALL, "FD:INDEX", .call = ranks_option_worker },
	{ .type = OPTION_END },
};
const struct option_table doctor_job_options = {
	"usage: shunt doctor job [--json] [--output DIR] [--rank-of PID|--key KEY] [--wait S]\n"
	"       srun|mpirun|torchrun ... shunt doctor job [--rendezvous DIR] [OPTION...]\n"
	"       shunt doctor job --answers, and then, with those of all hosts: shunt doctor job [--json] FILE...\n\n"
	"Asks all processes of this user (root: of all users) on this host that have a communicator, twice, and says "
	"who waits\n"
	"for whom. What moves between the two looks is well.\n"
	"Started by a launcher once on each host, all look at one time, and the first one tells of all hosts.\n"
	"By what starts processes without numbers (pdsh, kubectl exec), --answers gives a line for each host.\n\n",
	rows,
	"Exit status: 0 nobody waits, 1 perhaps, 2 somebody, or a process does not answer.\n",
};

int doctor_job_main(int argc, char **argv)
{
	struct job_opts o = { .ranks = RANKS_OPTS(60, "shunt"), .wait = 1, .timeout = 30 };
	struct ranks_launch launch = { 0 };
	int first, status = options_parse(&doctor_job_options, &o, argc, argv, &first);

	if (status >= 0)
		return status;
	o.ranks.device = "sim"; /* it needs none */
	o.ranks.timeout_s = o.timeout + o.wait + 3 * ASK_SECONDS;
	if (first < argc && (o.answers || o.output))
		return tool_usage_error("\"%s\" is one argument too many", argv[first]);
	if (first < argc)
		return files_main(&o, argv + first);
	if (o.output && doctor_directory_create("--output", o.output))
		return TOOL_USAGE;
	if (o.ranks.worker_fd >= 0)
		return ranks_slots_run(&o.ranks, host_main, &o);
	if (!o.here && !o.answers && ranks_detect(&o.ranks, &launch))
		return TOOL_USAGE;
	return launch.external ? ranks_run(&o.ranks, argc, argv) : here_main(&o);
}
