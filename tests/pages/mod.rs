//! The documentation as data: its files, their fenced blocks, and the examples in them, run by redis-cli.
//!
//! An example reads as redis-cli shows it, and is compared with what redis-cli really prints:
//!
//! ```text
//! > LOCK.ACQUIRE order:42 worker-1 30s
//! (integer) 1796043976185848
//! # 200ms later
//! > PTTL order:42
//! (integer) 29800
//! ```
//!
//! Equal, but for two kinds of numbers, which never repeat. A *fencing token*, which is any integer from 10^15 on, stands for
//! any other, in the same order as those beside it. *Time left* (what TTL and PTTL answer, the value behind `ttl`, and
//! fields 4 and 5 of a limit unless they are 0 or -1) may be off by a second and as long as the file has been running. A line
//! `# 200ms later` waits so long; other lines that begin with `#` are for the reader.
//!
//! What such a block shows is true at its pace only. One that shows something else where the machine took half a second
//! more than the block waits is run again, after its keys have been deleted.
#![allow(dead_code, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

use crate::rig::{Server, cli_program};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Integers from here on are fencing tokens.
const FENCE: i64 = 1_000_000_000_000_000;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Markdown file of the documentation, by its path from the root.
pub fn files() -> Vec<PathBuf> {
    let mut found = vec!["README.md".into(), "CHANGELOG.md".into()];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap().flatten() {
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

pub fn read(file: &Path) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// One fenced block.
#[derive(Debug)]
pub struct Block {
    /// The file and the line of its fence, for messages.
    pub place: String,
    /// What stands behind the fence.
    pub info: String,
    pub lines: Vec<String>,
}

pub fn blocks(file: &Path) -> Vec<Block> {
    let mut found: Vec<Block> = vec![];
    let mut open = false;
    for (index, line) in read(file).lines().enumerate() {
        match line.strip_prefix("```") {
            Some(info) if !open => {
                let place = format!("{}:{}", file.display(), index + 1);
                found.push(Block { place, info: info.to_owned(), lines: vec![] });
                open = true;
            }
            Some(_) => open = false,
            None if open => found.last_mut().unwrap().lines.push(line.to_owned()),
            None => {}
        }
    }
    assert!(!open, "{}: a fence that does not end", file.display());
    found
}

/// One step of a console block.
#[derive(Debug)]
pub enum Step {
    Wait(Duration),
    Call { command: String, shows: Vec<String> },
}

impl Block {
    pub fn is_console(&self) -> bool {
        self.info.split(' ').next() == Some("console")
    }

    pub fn steps(&self) -> Vec<Step> {
        let mut steps = vec![];
        for line in &self.lines {
            if let Some(command) = line.strip_prefix("> ") {
                steps.push(Step::Call { command: command.to_owned(), shows: vec![] });
            } else if let Some(remark) = line.strip_prefix("# ") {
                if let Some(time) = remark.strip_suffix(" later") {
                    let ms = time.strip_suffix("ms").and_then(|ms| ms.parse().ok());
                    steps.push(Step::Wait(Duration::from_millis(
                        ms.unwrap_or_else(|| panic!("{}: give it in ms: {line}", self.place)),
                    )));
                }
            } else if let Some(Step::Call { shows, .. }) = steps.last_mut() {
                shows.push(line.clone());
            } else {
                panic!("{}: output before any command: {line}", self.place);
            }
        }
        steps
    }
}

/// One redis-cli that is typed into.
pub struct Session {
    child: Child,
    typed: ChildStdin,
    printed: BufReader<ChildStdout>,
}

impl Session {
    pub fn open(server: &Server, options: &[&str]) -> Self {
        let mut cli = Command::new(cli_program());
        cli.args(["-p", &server.port().to_string(), "--no-raw"]).args(options);
        let mut child = cli.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (typed, printed) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, typed, printed }
    }

    /// What it prints for one line.
    pub fn ask(&mut self, line: &str) -> Vec<String> {
        // A quote that does not end is refused by redis-cli itself, in words of its own, and never reaches the server:
        // so they mark where an output ends, also within a transaction.
        writeln!(self.typed, "{line}\n\"").unwrap();
        self.typed.flush().unwrap();
        let mut lines: Vec<String> = vec![];
        loop {
            let mut line = String::new();
            assert!(self.printed.read_line(&mut line).unwrap() > 0, "redis-cli has ended; it printed {lines:?}");
            let line = line.trim_end();
            if line == "Invalid argument(s)" {
                break;
            }
            lines.push(line.to_owned());
        }
        // How long a slow call took.
        if lines.last().is_some_and(|last| last.starts_with('(') && last.ends_with("s)") && last.contains('.')) {
            lines.pop();
        }
        lines
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the console blocks of a file from the first to the last on one server, and says where one shows something else.
pub fn run(server: &Server, blocks: &[Block]) -> Vec<String> {
    let begun = Instant::now();
    let mut wrong = vec![];
    let mut fences = Fences::default();
    for block in blocks.iter().filter(|block| block.is_console()) {
        for attempt in 1.. {
            let (found, seen, late) = run_one(server, block, begun);
            if found.is_empty() || !late || attempt == 10 {
                wrong.extend(found);
                fences.0.extend(seen.0);
                break;
            }
            for step in block.steps() {
                if let Step::Call { command, .. } = step {
                    server.call(&["DEL", command.split(' ').nth(1).unwrap_or_default()]);
                }
            }
        }
    }
    wrong.extend(fences.disorder());
    wrong
}

/// Runs one block of a file that has been running since `begun`: what shows something else, the fencing tokens, and
/// whether the machine was too slow for a block that waits.
fn run_one(server: &Server, block: &Block, begun: Instant) -> (Vec<String>, Fences, bool) {
    let (mut wrong, mut fences) = (vec![], Fences::default());
    let mut session = Session::open(server, &[]);
    let (from, mut waits) = (Instant::now(), Duration::ZERO);
    for step in block.steps() {
        match step {
            Step::Wait(time) => {
                waits += time;
                std::thread::sleep(time);
            }
            Step::Call { command, shows } => {
                let printed = session.ask(&command);
                if let Err(why) = compare(&command, &shows, &printed, begun.elapsed(), &mut fences) {
                    let (shows, printed) = (shows.join("\n  "), printed.join("\n  "));
                    let place = &block.place;
                    wrong.push(format!("{place}: > {command}: {why}\n shows\n  {shows}\n prints\n  {printed}"));
                }
            }
        }
    }
    let late = !waits.is_zero() && from.elapsed() > waits + Duration::from_millis(500);
    (wrong, fences, late)
}

/// Fencing tokens as shown, and as printed.
#[derive(Debug, Default)]
pub struct Fences(Vec<(i64, i64)>);

impl Fences {
    pub fn disorder(mut self) -> Option<String> {
        self.0.sort_unstable();
        let wrong = self.0.windows(2).find(|pair| (pair[0].0 < pair[1].0) != (pair[0].1 < pair[1].1))?;
        Some(format!("fencing tokens (shown, printed) are in another order: {wrong:?}"))
    }
}

pub fn compare(
    command: &str,
    shows: &[String],
    printed: &[String],
    since: Duration,
    fences: &mut Fences,
) -> Result<(), String> {
    if shows.len() != printed.len() {
        return Err(format!("{} lines are shown, {} printed", shows.len(), printed.len()));
    }
    let slack = i64::try_from(since.as_millis()).unwrap() + 1000;
    let mut before = "";
    for (show, print) in shows.iter().zip(printed) {
        let ((text, numbers), (printed_text, printed_numbers)) = (split(show), split(print));
        if text != printed_text {
            return Err(format!("the line {print:?} is another"));
        }
        for (shown, printed) in numbers.into_iter().zip(printed_numbers) {
            if shown >= FENCE && printed >= FENCE {
                fences.0.push((shown, printed));
                continue;
            }
            let off = match left(command, before, show) {
                Some(unit) if shown > 0 && printed > 0 => slack.div_euclid(unit) + i64::from(unit > 1),
                _ => 0,
            };
            if (shown - printed).abs() > off {
                return Err(format!("{shown} is shown, {printed} printed"));
            }
        }
        before = show;
    }
    Ok(())
}

/// Is this line's number a time that runs down? Then its unit, in ms.
fn left(command: &str, before: &str, line: &str) -> Option<i64> {
    let name = command.split(' ').next().unwrap_or_default().to_ascii_uppercase();
    let field = line.rsplit_once(") (integer)").is_some_and(|(ahead, _)| ahead.ends_with(['4', '5']));
    match name.as_str() {
        "TTL" => Some(1000),
        "PTTL" => Some(1),
        "EXEC" if field => Some(1),
        _ if name.starts_with("RL.") && field => Some(1),
        _ if before.ends_with("\"ttl\"") => Some(1),
        _ => None,
    }
}

/// A line without its whole numbers, and those.
fn split(line: &str) -> (String, Vec<i64>) {
    let (mut text, mut numbers, mut digits) = (String::new(), vec![], String::new());
    for sign in line.chars().chain(['\n']) {
        if sign.is_ascii_digit() {
            digits.push(sign);
            continue;
        }
        if !digits.is_empty() {
            match digits.parse() {
                Ok(number) => {
                    text.push('0');
                    numbers.push(number);
                }
                Err(_) => text.push_str(&digits),
            }
            digits.clear();
        }
        text.push(sign);
    }
    (text, numbers)
}
