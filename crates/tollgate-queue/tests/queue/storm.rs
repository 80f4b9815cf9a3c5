//! Workers that fail and die at random: each request is delivered, first deliveries of a lane are in order,
//! none is lost, and tickets are true.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tollgate_queue::{
    Counts, Forward, ForwardError, Queue, QueueOptions, Shelf, StoredRequest, StoredResponse,
    TicketState, Worker, WorkerOptions,
};

use crate::ground::{Ground, request, response};
use crate::worker::Open;

const ENTRIES: usize = 1_000;
const LANES: usize = 20;
const WORKERS: usize = 8;

/// How long the storm may take; it takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A random number below `most`, from a generator that prints its seed when a test fails.
#[derive(Clone)]
struct Dice(Arc<Mutex<u64>>);

impl Dice {
    fn roll(&self, most: u64) -> u64 {
        let mut state = self.0.lock();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % most
    }
}

/// An upstream that fails, and takes its worker along, at random: before or after it has got the request.
#[derive(Clone)]
struct Unreliable {
    dice: Dice,
    /// Names in the order of their deliveries.
    delivered: Arc<Mutex<Vec<String>>>,
}

impl Forward for Unreliable {
    async fn forward(
        &self,
        request: &StoredRequest,
        _: &str,
        _: &tollgate_tower::Sent,
    ) -> Result<StoredResponse, ForwardError> {
        let fate = self.dice.roll(100);
        if fate < 2 {
            die();
        }
        if fate < 10 {
            return Err(ForwardError { retryable: true, message: "no luck".to_owned() });
        }
        tokio::time::sleep(Duration::from_micros(self.dice.roll(2_000))).await;
        self.delivered.lock().push(String::from_utf8(request.body.clone()).unwrap());
        if fate < 12 {
            die();
        }
        if fate < 15 {
            return Err(ForwardError { retryable: true, message: "lost answer".to_owned() });
        }
        Ok(response(&request.body))
    }
}

/// Ends the task without a word, as a killed process does.
fn die() -> ! {
    std::panic::resume_unwind(Box::new("died"))
}

fn spawn(queue: &Queue, forward: &Unreliable) -> JoinHandle<()> {
    let options = WorkerOptions { max_concurrency: 4, ..WorkerOptions::default() };
    let worker = Worker::new(queue.clone(), Open, forward.clone(), options);
    tokio::spawn(worker.run(std::future::pending()))
}

async fn storm(ground: Ground) {
    let seed = getrandom::u64().unwrap() | 1;
    println!("seed {seed}");
    let dice = Dice(Arc::new(Mutex::new(seed)));
    let options = QueueOptions {
        lease: Duration::from_millis(250),
        first_back_off: Duration::from_millis(2),
        max_back_off: Duration::from_millis(20),
        max_attempts: 1_000,
        ..QueueOptions::default()
    };
    let handles = [
        Queue::new(ground.open_running(options.clone()).await),
        Queue::new(ground.open_running(options).await),
    ];
    let delivered = Arc::new(Mutex::new(Vec::new()));
    let forward = Unreliable { dice: dice.clone(), delivered: Arc::clone(&delivered) };
    let mut workers: Vec<JoinHandle<()>> =
        (0..WORKERS).map(|number| spawn(&handles[number % 2], &forward)).collect();

    let mut tickets = HashMap::new();
    let work = async {
        for number in 0..ENTRIES {
            let (lane, name) = (number % LANES, format!("{}:{number}", number % LANES));
            let queue = &handles[number / 7 % 2];
            let pushed = queue.push(&format!("lane {lane}"), &request(&name), Duration::ZERO).await;
            tickets.insert(name, pushed.unwrap().ticket);
        }
        // Whole workers are killed meanwhile, with all that they have under way.
        while handles[0].store().counts().await.unwrap().waiting > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let victim = dice.roll(WORKERS as u64) as usize;
            workers[victim].abort();
            workers[victim] = spawn(&handles[victim % 2], &forward);
        }
    };
    let is_done = tokio::time::timeout(PATIENCE, work).await.is_ok();
    assert!(is_done, "not in time: {:?}, seed {seed}", handles[0].store().counts().await);
    for worker in workers {
        worker.abort();
    }

    let counts = handles[1].store().counts().await.unwrap();
    assert_eq!(counts, Counts { done: ENTRIES as u64, ..Counts::default() }, "seed {seed}");
    assert!(handles[0].store().list(Shelf::Waiting, None, 10).await.unwrap().tickets.is_empty());
    let delivered = delivered.lock().clone();
    assert!(delivered.len() > ENTRIES, "some are delivered twice");
    let mut next: [usize; LANES] = std::array::from_fn(|lane| lane);
    for name in &delivered {
        let (lane, number) = name.split_once(':').unwrap();
        let (lane, number): (usize, usize) = (lane.parse().unwrap(), number.parse().unwrap());
        assert!(number <= next[lane], "{name} came before {}, seed {seed}", next[lane]);
        if number == next[lane] {
            next[lane] += LANES;
        }
    }
    assert_eq!(next, std::array::from_fn(|lane| lane + ENTRIES), "some never came, seed {seed}");
    for (name, ticket) in &tickets {
        let ticket = handles[0].ticket(ticket).await.unwrap().unwrap();
        assert_eq!(ticket.state, TicketState::Done, "seed {seed}");
        assert_eq!(ticket.response.unwrap().body, name.as_bytes(), "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_on_sqlite() {
    storm(Ground::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_on_redis() {
    storm(Ground::redis()).await;
}
