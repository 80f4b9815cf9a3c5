//! Servers under test: started, watched, and stopped whatever happens.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server has to stop when asked to.
const PATIENCE: Duration = Duration::from_secs(30);

/// Resident bytes of a process; `self` is this one.
pub fn resident_bytes(process: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    // SAFETY: sysconf reads a constant of the system.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// Nanoseconds that all threads of a process have run.
pub fn running_nanos(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(of_task).sum()
}

/// The process must not outlive this one, however this one ends.
pub fn end_with_this(command: &mut Command) {
    // SAFETY: prctl is safe to call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// A server that says `listening http=ADDR` on its first line.
pub struct Server {
    child: Child,
    /// Its first line.
    said: String,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Server {
    /// Starts it and waits for its first line.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        end_with_this(&mut command);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match address(&line, "http") {
            Some(addr) => Self { child, said: line, addr },
            None => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{command:?} did not say where it listens, but {line:?}")
            }
        }
    }

    /// Where it listens under this name.
    pub fn at(&self, name: &str) -> SocketAddr {
        address(&self.said, name).unwrap_or_else(|| panic!("no {name} in {:?}", self.said))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

fn address(line: &str, name: &str) -> Option<SocketAddr> {
    let of_name = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    line.split_whitespace().find_map(of_name)
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not yet waited for, so the id is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
