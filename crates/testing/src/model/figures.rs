//! The commands that only tell: statistics and lists.

use tubes_protocol::{Command, JobStats, Reply, ServerStats, State, TubeStats};

use super::{Job, Model, Moment, Place, SECOND_NS};

/// Ready jobs with a smaller priority are "urgent".
const URGENT_BELOW: u32 = 1_024;

impl Model {
    pub(super) fn figures(&mut self, now: Moment, session: u32, command: &Command<'_>) {
        match command {
            Command::Stats => {
                self.counts.stats += 1;
                let stats = self.server_stats();
                self.answers.add(session, &Reply::ServerStats(&stats));
            }
            Command::StatsJob(id) => {
                self.counts.stats_job += 1;
                match self.jobs.get(*id) {
                    Some(job) => {
                        let stats = job_stats(now, *id, job, &self.tubes[job.tube].name);
                        self.answers.add(session, &Reply::JobStats(&stats));
                    }
                    None => self.answers.add(session, &Reply::NotFound),
                }
            }
            Command::StatsTube(name) => {
                self.counts.stats_tube += 1;
                match self.find(name) {
                    Some(tube) => {
                        let mut answers = std::mem::take(&mut self.answers);
                        answers.add(session, &Reply::TubeStats(&self.tube_stats(now, tube)));
                        self.answers = answers;
                    }
                    None => self.answers.add(session, &Reply::NotFound),
                }
            }
            Command::ListTubes => {
                self.counts.list_tubes += 1;
                let names: Vec<&[u8]> = self.tubes.values().map(|tube| &*tube.name).collect();
                self.answers.add(session, &Reply::Names(&names));
            }
            Command::ListTubeUsed => {
                self.counts.list_tube_used += 1;
                let used = &self.tubes[self.sessions[session].used].name;
                self.answers.add(session, &Reply::Using(used));
            }
            Command::ListTubesWatched => {
                self.counts.list_tubes_watched += 1;
                let watched = &self.sessions[session].watched;
                let names: Vec<&[u8]> = watched.iter().map(|tube| &*self.tubes[*tube].name).collect();
                self.answers.add(session, &Reply::Names(&names));
            }
            _ => unreachable!("not a command that only tells"),
        }
    }

    fn count_jobs(&self, counts: impl Fn(&Job) -> bool) -> u64 {
        self.jobs.values().filter(|job| counts(job)).count() as u64
    }

    fn server_stats(&self) -> ServerStats {
        let sessions = || self.sessions.values();
        ServerStats {
            current_jobs_urgent: self.count_jobs(is_urgent),
            current_jobs_ready: self.count_jobs(|job| word(job) == State::Ready),
            current_jobs_reserved: self.count_jobs(|job| word(job) == State::Reserved),
            current_jobs_delayed: self.count_jobs(|job| word(job) == State::Delayed),
            current_jobs_buried: self.count_jobs(|job| word(job) == State::Buried),
            commands: self.counts,
            job_timeouts: self.job_timeouts,
            total_jobs: self.total_jobs,
            max_job_size: self.max_job_size,
            current_tubes: self.tubes.len() as u64,
            current_connections: self.sessions.len() as u64,
            current_producers: sessions().filter(|state| state.producer).count() as u64,
            current_workers: sessions().filter(|state| state.worker).count() as u64,
            current_waiting: sessions().filter(|state| state.waiting.is_some()).count() as u64,
            total_connections: self.total_connections,
            draining: self.draining,
            ..ServerStats::default()
        }
    }

    fn tube_stats(&self, now: Moment, number: u64) -> TubeStats<'_> {
        let tube = &self.tubes[number];
        let jobs = |state: State| self.count_jobs(|job| job.tube == number && word(job) == state);
        let sessions = || self.sessions.values();
        TubeStats {
            name: &tube.name,
            current_jobs_urgent: self.count_jobs(|job| job.tube == number && is_urgent(job)),
            current_jobs_ready: jobs(State::Ready),
            current_jobs_reserved: jobs(State::Reserved),
            current_jobs_delayed: jobs(State::Delayed),
            current_jobs_buried: jobs(State::Buried),
            total_jobs: tube.total_jobs,
            current_using: sessions().filter(|state| state.used == number).count() as u64,
            current_watching: sessions().filter(|state| state.watched.contains(&number)).count() as u64,
            current_waiting: sessions()
                .filter(|state| state.waiting.is_some() && state.watched.contains(&number))
                .count() as u64,
            cmd_delete: tube.deletes,
            cmd_pause_tube: tube.pauses,
            pause: tube.pause.map_or(0, |pause| pause.seconds),
            pause_time_left: tube.pause.map_or(0, |pause| whole_seconds(now, pause.until_ns)),
        }
    }
}

fn job_stats<'a>(now: Moment, id: u64, job: &Job, tube: &'a [u8]) -> JobStats<'a> {
    let time_left = match job.place {
        Place::Delayed { due_ns } => whole_seconds(now, due_ns),
        Place::Reserved { deadline_ns, .. } => whole_seconds(now, deadline_ns),
        Place::Ready | Place::Buried { .. } => 0,
    };
    let age_ms = u64::try_from(i128::from(now.boot_ns / 1_000_000) - job.created_ms).unwrap_or(0);
    JobStats {
        id,
        tube,
        state: word(job),
        pri: job.pri,
        age: age_ms / 1_000,
        delay: job.delay_s,
        ttr: job.ttr_s,
        time_left,
        file: job.file,
        reserves: job.counters.reserves,
        timeouts: job.counters.timeouts,
        releases: job.counters.releases,
        buries: job.counters.buries,
        kicks: job.counters.kicks,
    }
}

fn whole_seconds(now: Moment, until_ns: u64) -> u64 {
    until_ns.saturating_sub(now.boot_ns) / SECOND_NS
}

fn is_urgent(job: &Job) -> bool {
    job.place == Place::Ready && job.pri < URGENT_BELOW
}

fn word(job: &Job) -> State {
    match job.place {
        Place::Ready => State::Ready,
        Place::Delayed { .. } => State::Delayed,
        Place::Reserved { .. } => State::Reserved,
        Place::Buried { .. } => State::Buried,
    }
}
