//! Memory that a backlog leaves behind.

use std::sync::OnceLock;

static GIVE_BACK: OnceLock<fn()> = OnceLock::new();

/// Jobs that a backlog must have had for its memory to be worth a call, some 10 MiB.
const BACKLOG_MIN: u64 = 50_000;

/// Says how the program gives free memory back to the system; called once, by whoever chooses the allocator.
pub fn give_memory_back_with(give_back: fn()) {
    // A second caller would choose the same allocator.
    let _ = GIVE_BACK.set(give_back);
}

/// Watches a backlog of jobs grow and shrink, and has memory given back behind it.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    peak: u64,
}

impl Backlog {
    /// A turn has left so many jobs. Each time they have become a quarter of what they were, and when none is left, memory
    /// is given back: a few calls for the largest backlog.
    pub(crate) fn turn(&mut self, jobs: u64) {
        self.peak = self.peak.max(jobs);
        if self.shrank_to(jobs)
            && let Some(give_back) = GIVE_BACK.get()
        {
            give_back();
        }
    }

    fn shrank_to(&mut self, jobs: u64) -> bool {
        let has_shrunk = self.peak >= BACKLOG_MIN && jobs <= self.peak / 4;
        if has_shrunk {
            // Kept above the bound while jobs are left, so that the last of them count too.
            self.peak = if jobs == 0 { 0 } else { jobs.max(BACKLOG_MIN) };
        }
        has_shrunk
    }
}

#[cfg(test)]
mod tests {
    use super::Backlog;

    #[test]
    fn a_backlog_that_shrinks_is_noticed_a_few_times_and_at_its_end() {
        let mut backlog = Backlog::default();
        let mut noticed = Vec::new();
        for jobs in (0..=1_000_000_u64).chain((0..1_000_000).rev()) {
            backlog.peak = backlog.peak.max(jobs);
            if backlog.shrank_to(jobs) {
                noticed.push(jobs);
            }
        }
        assert_eq!(noticed.last(), Some(&0));
        assert!(noticed.len() < 15, "{noticed:?}");
    }

    #[test]
    fn a_few_jobs_that_come_and_go_are_no_backlog() {
        let mut backlog = Backlog::default();
        assert!((0..1000_u64).map(|turn| turn % 40_000).all(|jobs| {
            backlog.peak = backlog.peak.max(jobs);
            !backlog.shrank_to(jobs)
        }));
    }
}
