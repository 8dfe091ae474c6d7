//! A client: one socket, and nothing between the test and the bytes.

use super::{SOON, ValueExt};
use redis::{Parser, Value};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The words of a command, from strings, bytes and numbers mixed: `args!["LOCK.ACQUIRE", key, &token[..], 30]`.
macro_rules! args {
    ($($word:expr),* $(,)?) => {{
        let mut words: Vec<Vec<u8>> = Vec::new();
        $( words.extend(redis::ToRedisArgs::to_redis_args(&$word)); )*
        words
    }};
}
pub(crate) use args;

/// One connection. It never reconnects, and reads a reply only when asked to; an error of the server is a value.
pub struct Client {
    socket: TcpStream,
    parser: Parser,
}

impl Client {
    /// Connects to a port of this machine.
    pub fn connect(port: u16) -> Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, parser: Parser::new() })
    }

    /// Sends a command and reads its reply.
    #[track_caller]
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Value {
        self.send(words);
        match self.read(SOON) {
            Ok(reply) => reply,
            Err(error) => panic!("no reply to {}: {error}", shown(words)),
        }
    }

    /// Sends a command without reading; what it answers is for [`Self::read`]. Commands of two sends may reach the server
    /// in one read of its socket or in two; [`Self::send_all`] makes it one.
    #[track_caller]
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        self.send_raw(&packed(words));
    }

    /// Sends a command; false if the connection is closed.
    pub fn send_if_open<W: AsRef<[u8]>>(&mut self, words: &[W]) -> bool {
        self.socket.write_all(&packed(words)).is_ok()
    }

    /// Sends several commands in one write.
    #[track_caller]
    pub fn send_all(&mut self, commands: &[Vec<Vec<u8>>]) {
        self.send_raw(&commands.iter().flat_map(|words| packed(words)).collect::<Vec<_>>());
    }

    /// The same; false if the server has closed the connection.
    #[must_use]
    pub fn try_send_all(&mut self, commands: &[Vec<Vec<u8>>]) -> bool {
        self.socket.write_all(&commands.iter().flat_map(|words| packed(words)).collect::<Vec<_>>()).is_ok()
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the server takes what is sent");
    }

    /// Reads the next reply or, in RESP3, push. `TimedOut` if none has come within that time (a later read still gets it whole),
    /// `UnexpectedEof` if the server has closed the connection.
    pub fn read(&mut self, within: Duration) -> Result<Value> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
            self.socket.set_read_timeout(Some(left))?;
            // The parser keeps what it has read of an unfinished reply.
            let error = match self.parser.parse_value(Patient(&self.socket)) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if error.is_timeout() {
                if Instant::now() >= deadline {
                    return Err(Error::new(ErrorKind::TimedOut, format!("silent for {within:?}")));
                }
            } else if error.is_connection_dropped() {
                return Err(Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"));
            } else {
                return Err(Error::other(error));
            }
        }
    }

    /// Whether something has come that is still to be read: a reply, or the end of the connection.
    #[track_caller]
    pub fn is_answered(&self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket that need not be waited for");
        let seen = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(false).expect("a socket that is waited for");
        !matches!(seen, Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()))
    }

    /// Whether nothing comes for that long. For "still waits" ask a condition of the server first, so that the time here
    /// only has to cover what is wrong, not what is slow.
    #[track_caller]
    pub fn is_silent(&mut self, during: Duration) -> bool {
        match self.read(during) {
            Err(error) if error.kind() == ErrorKind::TimedOut => true,
            Err(error) => panic!("not silent but gone: {error}"),
            Ok(_) => false,
        }
    }

    /// Sends all commands in one write and reads as many replies.
    #[track_caller]
    pub fn pipeline(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Value> {
        self.send_all(commands);
        commands
            .iter()
            .map(|words| self.read(SOON).unwrap_or_else(|e| panic!("no reply to {}: {e}", shown(words))))
            .collect()
    }

    /// Turns this connection to RESP3.
    #[track_caller]
    pub fn resp3(mut self) -> Self {
        let hello = self.call(&["HELLO", "3"]);
        assert!(hello.error().is_none(), "HELLO 3: {hello:?}");
        self
    }

    /// The id the server knows this connection by.
    #[track_caller]
    pub fn id(&mut self) -> i64 {
        self.call(&["CLIENT", "ID"]).int()
    }

    /// Closes the connection; the server sees it at once.
    pub fn close(self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Reads on where a process that was frozen goes on, and is interrupted in what it waits for.
struct Patient<'a>(&'a TcpStream);

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

/// A command as it goes over the wire.
fn packed<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command.get_packed_command()
}

/// A command as a person reads it.
pub(super) fn shown<W: AsRef<[u8]>>(words: &[W]) -> String {
    words.iter().map(|word| word.as_ref().escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}
