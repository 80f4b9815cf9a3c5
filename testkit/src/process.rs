//! One child process: started, paused, killed, and gone when its owner is.
//!
//! A destructor does not run when a test's process is killed, or for a value in a `static`. So there is
//! one more child, a shell that reads which processes run and kills those left when its input ends:
//! the system closes that input with the test's process.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

/// Reads `+ PID` and `- PID`; at the end of its input, kills what is left.
const UNDERTAKER: &str = r#"
trap '' INT TERM HUP
pids=
while read -r change pid; do
  case $change in
    +) pids="$pids $pid" ;;
    -) left=
       for other in $pids; do [ "$other" = "$pid" ] || left="$left $other"; done
       pids=$left ;;
  esac
done
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
"#;

static WATCH: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    let mut command = Command::new("sh");
    command.args(["-c", UNDERTAKER]).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Mutex::new(command.spawn().expect("sh starts"))
});

fn tell_watch(change: char, pid: u32) {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(input) = watch.stdin.as_mut() {
        // Should it be gone, destructors still do the work.
        let _ = writeln!(input, "{change} {pid}");
    }
}

/// A running child.
pub(crate) struct Process {
    child: Child,
    paused: bool,
}

impl Process {
    /// Starts a program; what it prints goes to the end of `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).expect("a log file");
        let errors = log.try_clone().expect("a log file, twice");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| {
            let program = command.get_program().display();
            panic!("{program} does not start ({error}); `make deps` installs it")
        });
        tell_watch('+', child.id());
        Self { child, paused: false }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it ended by itself?
    pub(crate) fn has_ended(&mut self) -> bool {
        // A process that has been waited for has lost its id, which may be another's soon.
        let ended = !matches!(self.child.try_wait(), Ok(None));
        if ended {
            tell_watch('-', self.child.id());
        }
        ended
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Stops it without its knowledge; the kernel goes on accepting connections for it.
    pub(crate) fn pause(&mut self) {
        self.signal(Signal::STOP);
        self.paused = true;
    }

    pub(crate) fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.paused = false;
    }

    fn signal(&mut self, signal: Signal) {
        assert!(!self.has_ended(), "the process {} has ended", self.child.id());
        kill_process(Pid::from_child(&self.child), signal).expect("a signal to our own child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Before the wait, which frees the id for others.
        tell_watch('-', self.child.id());
        let _ = self.child.wait();
    }
}
