//! Time from exec until the server accepts a connection, in memory and with a log in an empty directory.

use anyhow::Result;

use super::Effort;
use crate::peer::{Contender, LogMode};
use crate::results::Start;
use crate::round::Lab;

const ROUNDS: usize = 21;
const QUICK_ROUNDS: usize = 3;

pub(super) fn measure(lab: &Lab, effort: Effort) -> Result<Vec<Start>> {
    let rounds = if effort.quick { QUICK_ROUNDS } else { ROUNDS };
    let mut starts = Vec::new();
    for mode in [LogMode::Memory, LogMode::Interval] {
        let mut pair = [Contender::Tenure, Contender::Beanstalkd].map(|contender| Start {
            contender,
            mode,
            milliseconds: Vec::new(),
        });
        for _ in 0..rounds {
            for start in &mut pair {
                let (server, _folder) = lab.start_queue(start.contender, mode)?;
                start.milliseconds.push(server.listening_after.as_secs_f64() * 1e3);
                server.stop()?;
            }
        }
        for start in &pair {
            let longest = start.milliseconds.iter().copied().fold(0.0, f64::max);
            eprintln!("start: {}, {mode}: listening after at most {longest:.1} ms", start.contender);
        }
        starts.extend(pair);
    }
    Ok(starts)
}
