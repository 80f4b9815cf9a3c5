//! nginx, as an upstream and as a peer of the gateway.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it has to start, or to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the upstream answers.
const ANSWER: &str = "{\"id\":\"0123456789abcdef\",\"object\":\"answer\",\"text\":\"all is well\"}";

/// One worker per core, as packages configure it. Connections stay open: the benchmark should not
/// measure how fast nginx or Tollgate opens them.
const FRAME: &str = "\
worker_processes auto;
pid {dir}/pid;
error_log {dir}/error.log warn;
{user}
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
{http}
}
";

/// A running nginx.
pub struct Nginx {
    child: Child,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Nginx {
    /// An upstream that answers every request with a small body.
    pub fn upstream(dir: &Path) -> Self {
        let http = format!(
            "  server {{ listen {{addr}} reuseport; location = /status {{ stub_status; }} location / {{ default_type application/json; return 200 '{ANSWER}'; }} }}"
        );
        Self::start(dir, &http)
    }

    /// A reverse proxy with `limit_req` by address, that refuses nothing at this load.
    pub fn limiting_proxy(dir: &Path, upstream: SocketAddr) -> Self {
        let http = format!(
            "  limit_req_zone $binary_remote_addr zone=clients:10m rate=1000000r/s;
  upstream service {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen {{addr}} reuseport;
    location / {{
      limit_req zone=clients burst=1000000 nodelay;
      limit_req_status 429;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_pass http://service;
    }}
  }}"
        );
        Self::start(dir, &http)
    }

    /// How many requests an upstream has had in all.
    pub fn served(&self) -> u64 {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        // The line below `server accepts handled requests` has these three numbers.
        let numbers = text.lines().skip_while(|line| !line.starts_with("server accepts")).nth(1);
        let last = numbers.and_then(|line| line.split_whitespace().nth(2)?.parse().ok());
        last.unwrap_or_else(|| panic!("nginx said {text}"))
    }

    fn start(dir: &Path, http: &str) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let addr = free_address();
        // SAFETY: geteuid reads a number.
        let user = if unsafe { libc::geteuid() } == 0 { "user root;" } else { "" };
        let config = FRAME
            .replace("{http}", http)
            .replace("{addr}", &addr.to_string())
            .replace("{user}", user)
            .replace("{dir}", &dir.display().to_string());
        let file = dir.join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(dir).arg("-c").arg(file).args(["-g", "daemon off;"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Killed, it would leave its workers behind; asked to end, it takes them along.
        // SAFETY: prctl is safe to call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let child = command.spawn().expect("nginx must be installed");
        let mut nginx = Self { child, addr };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(addr).is_err() {
            let has_ended = !matches!(nginx.child.try_wait(), Ok(None));
            let log = std::fs::read_to_string(dir.join("error.log")).unwrap_or_default();
            assert!(!has_ended && Instant::now() < deadline, "nginx does not start: {log}");
            std::thread::sleep(Duration::from_millis(10));
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not yet waited for, so the id is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

/// nginx cannot pick a port itself and say which.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
