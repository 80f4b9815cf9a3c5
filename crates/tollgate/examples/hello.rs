//! Three reports a minute for each user: `cargo run -p tollgate --example hello`.

use tollgate::{Limiter, Quota};

fn main() {
    let reports = Limiter::keyed(Quota::per_minute(3));
    for _ in 0..4 {
        match reports.check("ann") {
            Ok(pass) => println!("{} left", pass.remaining()),
            Err(refusal) => println!("{refusal}"),
        }
    }
}
