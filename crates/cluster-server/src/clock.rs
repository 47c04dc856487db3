//! The clock by which leases are counted, and waiting on it.
//!
//! It counts the time in which the machine is suspended, which `Instant` and the runtime's timers do not: a process that
//! comes back from a suspend must find its lease expired before it does anything else.

use std::io;

use cluster_core::{Boot, Now};
use rustix::time::{ClockId, clock_gettime};

/// The clock of leases.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// Counts suspends on the systems that have no clock of that name, or comes closest to it.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The present instant, by the clock that decides and by the wall clock.
#[must_use]
pub fn now() -> Now {
    let wall = clock_gettime(ClockId::Realtime);
    Now { boot: boot(), wall_ms: wall.tv_sec * 1_000 + wall.tv_nsec / 1_000_000 }
}

/// The present instant by the clock that decides.
#[must_use]
pub fn boot() -> Boot {
    let time = clock_gettime(CLOCK);
    Boot(u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Waits on that clock.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct Timer(tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>);

#[cfg(target_os = "linux")]
impl Timer {
    /// A timer of the runtime it is made in.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for values that do not own their descriptor; this one does"
        )]
        Ok(Self(tokio::io::unix::AsyncFd::new(timer)?))
    }

    /// Waits until an instant; without one for ever. May be given up at any time.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the timer, which it has no reason to.
    pub async fn until(&mut self, instant: Option<Boot>) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let Some(instant) = instant else { return std::future::pending().await };
        // All zeros would disarm it.
        let ns = instant.0.max(1);
        let it_value = Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        loop {
            let mut ready = self.0.readable_mut().await?;
            let mut count = [0; 8];
            match ready.try_io(|timer| rustix::io::read(timer.get_ref(), &mut count).map_err(io::Error::from)) {
                Ok(read) => return read.map(drop),
                Err(_would_block) => {}
            }
        }
    }
}

/// Waits on that clock.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub struct Timer(());

#[cfg(not(target_os = "linux"))]
impl Timer {
    /// How often the clock is looked at: the runtime's own timers stand still while the machine is suspended.
    const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

    /// A timer of the runtime it is made in.
    ///
    /// # Errors
    ///
    /// None here.
    pub fn new() -> io::Result<Self> {
        Ok(Self(()))
    }

    /// Waits until an instant; without one for ever. May be given up at any time.
    ///
    /// # Errors
    ///
    /// None here.
    pub async fn until(&mut self, instant: Option<Boot>) -> io::Result<()> {
        let Some(instant) = instant else { return std::future::pending().await };
        while boot() < instant {
            tokio::time::sleep(instant.since(boot()).min(Self::LOOK)).await;
        }
        Ok(())
    }
}
