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
    /// With how many jobs left memory is given back next; `None` while there is no backlog.
    next: Option<u64>,
}

impl Backlog {
    /// A turn has left so many jobs. Each time they have become a quarter of what they were, and when none is left, memory
    /// is given back: some ten calls for the largest backlog.
    pub(crate) fn turn(&mut self, jobs: u64) {
        if self.shrank_to(jobs)
            && let Some(give_back) = GIVE_BACK.get()
        {
            give_back();
        }
    }

    fn shrank_to(&mut self, jobs: u64) -> bool {
        if jobs >= BACKLOG_MIN {
            self.next = self.next.max(Some(jobs / 4));
        }
        let has_shrunk = self.next.is_some_and(|next| jobs <= next);
        if has_shrunk {
            self.next = (jobs > 0).then_some(jobs / 4);
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
        let up_and_down = (0..=1_000_000_u64).chain((0..1_000_000).rev());
        let noticed: Vec<u64> = up_and_down.filter(|jobs| backlog.shrank_to(*jobs)).collect();
        assert_eq!(noticed, [250_000, 62_500, 15_625, 3_906, 976, 244, 61, 15, 3, 0]);
        assert!(!backlog.shrank_to(0), "an empty server has nothing to give back");
    }

    #[test]
    fn a_few_jobs_that_come_and_go_are_no_backlog() {
        let mut backlog = Backlog::default();
        assert!((0..1000_u64).map(|turn| turn * 7919 % 40_000).all(|jobs| !backlog.shrank_to(jobs)));
    }
}
