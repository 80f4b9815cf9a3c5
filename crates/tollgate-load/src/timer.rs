//! A timer that is exact to some microseconds. The runtime's own rounds up to whole milliseconds, which
//! is more than most answers take.

#[cfg(target_os = "linux")]
pub(crate) use exact::Timer;
#[cfg(not(target_os = "linux"))]
pub(crate) use rounded::Timer;

#[cfg(target_os = "linux")]
mod exact {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;
    use tokio::time::Instant;

    /// A timer of the kernel.
    #[derive(Debug)]
    pub(crate) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        #[allow(
            deprecated,
            reason = "what replaces it is unsafe, for owners that may change their descriptor; an \
                      OwnedFd never does"
        )]
        pub(crate) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            Ok(Self(AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
        }

        pub(crate) async fn until(&mut self, due: Instant) -> io::Result<()> {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let value = Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let set = Itimerspec { it_interval: never, it_value: value };
            // Setting it again also takes back that it went off, so nothing has to be read.
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &set)?;
            self.0.readable().await?.clear_ready();
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod rounded {
    use std::io;

    use tokio::time::{Instant, sleep_until};

    /// The runtime's timer.
    #[derive(Debug)]
    pub(crate) struct Timer;

    impl Timer {
        #[allow(clippy::unnecessary_wraps, reason = "as its exact twin")]
        pub(crate) const fn new() -> io::Result<Self> {
            Ok(Self)
        }

        #[allow(clippy::unused_self, reason = "as its exact twin")]
        pub(crate) async fn until(&mut self, due: Instant) -> io::Result<()> {
            sleep_until(due).await;
            Ok(())
        }
    }
}
