//! `tollgate-bench`: everything that is timed.

mod bench;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tollgate_bench::http::Bare;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Tollgate and its peers, side by side in one run")]
struct Args {
    /// Small figures in short time: does it run at all?
    #[arg(long, global = true, env = "BENCH_QUICK", value_parser = clap::builder::FalseyValueParser::new())]
    quick: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// T1: single-limit checks in one process, with governor, throttlecrab and limitador
    Check {
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Only those whose name contains this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// T2, T9: whole decisions of three scopes, from 3 and from 1,000 rules
    Decide {
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// What audit and clients' tiers add to a decision, in instructions
    Audit,
    /// T4: the HTTP handler in this process, call by call
    Handler,
    /// T9: from 1 to 30 million counters
    Growth {
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// A flood of unique keys against a bounded store
    Flood,
    /// T4, T5b: HTTP side by side with bare servers
    Http {
        /// The product's binary
        #[arg(long)]
        tollgate: PathBuf,
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// T5, T8: gRPC beside HTTP, the gateway beside nginx, the first token of a model, how even throttling is
    Edge {
        /// The product's binary
        #[arg(long)]
        tollgate: PathBuf,
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Only these parts
        #[arg(long, value_enum)]
        part: Vec<bench::edge::Part>,
    },
    /// T10, T11: start, size, and what idling costs
    Start {
        /// The product's binary
        #[arg(long)]
        tollgate: PathBuf,
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// T6, T7: a Redis that nodes share, beside what it can do at all
    Shared {
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Clients of a Redis cluster, side by side
    #[command(name = "redis_clients")]
    RedisClients {
        /// Rounds, of which the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Threads that the clients' tasks run on
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
    /// Fills a data directory with counters
    Snapshot {
        /// Where
        #[arg(long)]
        dir: PathBuf,
        /// How many
        #[arg(long)]
        counters: u64,
    },
    /// Work for an instruction profiler
    Profile {
        /// What to do
        what: bench::profile::What,
        /// How often
        #[arg(long, default_value_t = 200_000)]
        times: usize,
    },
    /// A bare server to compare with; serves until it is killed
    Bare {
        /// How it is built
        kind: Bare,
    },
    /// Prints the table of results, and puts it into a document
    Report {
        /// What the benchmarks recorded
        #[arg(long)]
        results: PathBuf,
        /// The facts about the machine, one `name: value` on each line
        #[arg(long)]
        facts: PathBuf,
        /// The document, which has the markers in it
        #[arg(long)]
        docs: Option<PathBuf>,
        /// Whose markers: `<!-- NAME:begin -->` and `<!-- NAME:end -->`
        #[arg(long, default_value = "bench")]
        section: String,
    },
}

fn main() {
    let Args { quick, command } = Args::parse();
    match command {
        Command::Check { rounds, only } => bench::check::run(quick, rounds, &only),
        Command::Decide { rounds } => bench::decide::run(quick, rounds),
        Command::Audit => bench::audit::run(quick),
        Command::Handler => bench::handler::run(quick),
        Command::Growth { rounds } => bench::growth::run(quick, rounds),
        Command::Flood => bench::flood::run(quick),
        Command::Http { tollgate, rounds } => bench::http::run(quick, rounds, &tollgate),
        Command::Edge { tollgate, rounds, part } => {
            bench::edge::run(quick, rounds, &tollgate, &part);
        }
        Command::Start { tollgate, rounds } => bench::start::run(quick, rounds, &tollgate),
        Command::Shared { rounds } => bench::shared::run(quick, rounds),
        Command::RedisClients { rounds, threads } => {
            bench::redis_clients::run(quick, rounds, threads);
        }
        Command::Snapshot { dir, counters } => bench::start::snapshot(&dir, counters),
        Command::Profile { what, times } => bench::profile::run(what, times),
        Command::Bare { kind } => tollgate_bench::http::serve_bare(kind),
        Command::Report { results, facts, docs, section } => {
            bench::report::run(&results, &facts, docs.as_deref(), &section);
        }
    }
}
