#!/usr/bin/env python3
"""Measure terminal-session servers (tmux, dtach, abduco, screen, mosh, ...).

Python 3.9+ standard library only, Linux only.

    sessions.py run [--peers a,b] [--tests flood,echo,interrupt,attach,rss,restart] [--json FILE]
    sessions.py report FILE.json            the table of docs/benchmarks.md
    sessions.py list

Tests, per peer:
  flood   seconds for a program to write 60 MB of coloured lines at 120x40,
          (0) with no viewer and (1) with one draining viewer; 'shown' is the
          time until the last line is on a viewer's wire (for 0: on a viewer
          attached after the program ended); plus the server's peak RSS and
          its CPU seconds, the figure to trust on a busy machine
  echo    1 byte in, 1 byte back through an attached viewer over raw `cat`
  interrupt  `yes` floods a viewer that reads; milliseconds from Ctrl-C on its
          terminal until the shell behind it goes on (median and worst of 10)
  attach  spawn of the attach command to first byte, to the first painted
          marker, and to the last byte of a full coloured 200x50 screen
  rss     RSS/PSS of the server processes with 1 and with 50 idle sessions
  restart 200 sessions, the server is killed with SIGKILL: seconds until all
          of them can be attached again (peers whose sessions die with it: none)

Add a peer: subclass CommandPeer, give start_cmd/attach_cmd/kill_cmd and the
names of the server processes (/proc/PID/comm), and put it in PEERS.
"""
import argparse, fcntl, gc, json, os, pty, re, select, shutil, signal, socket
import struct, subprocess, sys, tempfile, termios, threading, time

ME = os.path.abspath(__file__)
ESC = re.compile(rb'\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|[ -/]*[0-~])')
END = b'FLOOD-END'


# ---------------------------------------------------------------- children
def child_flood(go, out, size):
    """Wait for the file `go`, write `size` bytes of coloured lines, report times."""
    line = []
    for i in range(2000):
        c = 31 + i % 7
        line.append('\x1b[%dm%06d\x1b[0m \x1b[1;38;5;%dmINFO\x1b[0m compiling module \x1b[4%dm%s\x1b[0m in %d ms: ok\n'
                    % (c, i, 16 + i % 200, 1 + i % 6, 'pkg/sub-%d/file_%d.go' % (i % 37, i), i % 997))
    buf = ''.join(line).encode()
    os.write(1, b'READY\n')
    while not os.path.exists(go):
        time.sleep(0.005)
    t0 = time.monotonic()
    left = size
    fd = 1
    while left > 0:
        chunk = buf[:min(left, len(buf))]
        chunk = chunk[:chunk.rfind(b'\n') + 1]       # whole lines: never cut an escape
        if not chunk:
            break
        mv = memoryview(chunk)
        while mv:
            mv = mv[os.write(fd, mv[:65536]):]
        left -= len(chunk)
    os.write(1, b'\n' + END + b'\n')
    t1 = time.monotonic()
    with open(out + '.tmp', 'w') as f:
        f.write('%r %r' % (t0, t1))
    os.rename(out + '.tmp', out)
    time.sleep(3600)


def child_paint(cols, rows):
    """Paint a full coloured screen now and at each SIGWINCH, as a TUI would."""
    def screen(*_):
        out = ['\x1b[2J']
        for r in range(1, rows + 1):
            out.append('\x1b[%d;1H' % r)
            head = 'TOP-MARK' if r == 1 else 'END-MARK' if r == rows else 'row-%04d' % r
            out.append('\x1b[0;7m%s\x1b[0m' % head)
            n = len(head)
            k = r
            while n < cols - 1:
                w = min(5, cols - 1 - n)
                out.append('\x1b[3%dm%s' % (1 + k % 7, 'abcdefghij'[k % 6:k % 6 + w]))
                n += w
                k += 1
        out.append('\x1b[0m')
        data = memoryview(''.join(out).encode())
        while data:
            data = data[os.write(1, data):]
    signal.signal(signal.SIGWINCH, screen)
    screen()
    while True:
        signal.pause()


# ---------------------------------------------------------------- viewers
class PtyViewer:
    """The peer's attach command inside a pty of the given size."""
    def __init__(self, argv, cols, rows, env):
        self.t0 = time.monotonic()
        m, s = pty.openpty()
        fcntl.ioctl(m, termios.TIOCSWINSZ, struct.pack('HHHH', rows, cols, 0, 0))

        def setup():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.p = subprocess.Popen(argv, stdin=s, stdout=s, stderr=s, env=env,
                                  preexec_fn=setup, close_fds=True)
        os.close(s)
        self.fd = m

    def fileno(self):
        return self.fd

    def read(self):
        try:
            return os.read(self.fd, 65536)
        except OSError:
            return b''

    def write(self, data):
        os.write(self.fd, data)

    def abandon(self):
        self.p.kill()                   # no goodbye: mosh's server then stays
        self.p.wait()
        os.close(self.fd)

    def close(self):
        os.close(self.fd)               # the client gets SIGHUP: a detach
        try:
            self.p.wait(1.0)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()


class Peer:
    name = ''
    binary = ''
    comms = ()             # /proc/PID/comm of the processes counted as server
    reattach = True        # a second viewer may come after the first one left
    detached = True        # runs on without a viewer
    diffs = False          # sends cell differences: the end mark may never be spelled out
    note = ''

    def __init__(self, tmp):
        self.tmp = tmp
        self.run = 'plab%d-%s-%d' % (os.getpid(), self.name, time.monotonic_ns())
        self.env = dict(os.environ, PLAB_RUN=self.run, TERM='xterm-256color',
                        LANG='C.UTF-8', LC_ALL='C.UTF-8', HOME=tmp)
        for k in ('TMUX', 'STY', 'SSH_CONNECTION'):
            self.env.pop(k, None)

    @classmethod
    def available(cls):
        return bool(shutil.which(cls.binary))

    def pids(self, servers=True):
        out = []
        for d in os.listdir('/proc'):
            if not d.isdigit() or int(d) == os.getpid():
                continue
            try:
                env = open('/proc/%s/environ' % d, 'rb').read()
                comm = open('/proc/%s/comm' % d).read().strip()
            except OSError:
                continue
            if ('PLAB_RUN=' + self.run).encode() in env and (not servers or comm in self.comms):
                out.append(int(d))
        return out

    def memory(self):
        rss = pss = 0
        for p in self.pids():
            try:
                for ln in open('/proc/%d/smaps_rollup' % p):
                    if ln.startswith('Rss:'):
                        rss += int(ln.split()[1])
                    elif ln.startswith('Pss:'):
                        pss += int(ln.split()[1])
            except OSError:
                pass
        return rss, pss

    def cpu(self):
        """CPU seconds used so far by the server processes: steady on a busy machine."""
        n = 0
        for p in self.pids():
            try:
                f = open('/proc/%d/stat' % p).read().rsplit(')', 1)[1].split()
                n += int(f[11]) + int(f[12])
            except OSError:
                pass
        return n / os.sysconf('SC_CLK_TCK')

    def stop_all(self):
        for sig in (signal.SIGTERM, signal.SIGKILL):
            for p in self.pids(servers=False):     # only what carries this run's mark
                try:
                    os.kill(p, sig)
                except OSError:
                    pass
            time.sleep(0.3)


class CommandPeer(Peer):
    def start_cmd(self, sid, argv, cols, rows):
        raise NotImplementedError

    def attach_cmd(self, sid):
        raise NotImplementedError

    def kill_cmd(self, sid):
        return None

    def start(self, sid, argv, cols, rows):
        cmd = self.start_cmd(sid, argv, cols, rows)
        r = subprocess.run(cmd, env=self.env, cwd=self.tmp, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
        if r.returncode:
            raise RuntimeError('%s: %s' % (cmd, r.stdout[-300:]))
        return r.stdout

    def attach(self, sid, cols, rows):
        return PtyViewer(self.attach_cmd(sid), cols, rows, self.env)

    def kill(self, sid):
        cmd = self.kill_cmd(sid)
        if cmd:
            subprocess.run(cmd, env=self.env, cwd=self.tmp, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Direct(Peer):
    """No session server: the floor of what this harness can measure."""
    name, note, detached, reattach = 'direct', 'a bare pty, no server', False, False

    def start(self, sid, argv, cols, rows):
        self.argv = argv

    def attach(self, sid, cols, rows):
        return PtyViewer(self.argv, cols, rows, self.env)

    def kill(self, sid):
        pass

    @classmethod
    def available(cls):
        return True


class Tmux(CommandPeer):
    name, binary, comms = 'tmux', 'tmux', ('tmux: server',)

    def _t(self, *a):
        return ['tmux', '-S', self.tmp + '/tmux.sock', '-f', '/dev/null', *a]

    def start_cmd(self, sid, argv, cols, rows):
        return self._t('new-session', '-d', '-s', sid, '-x', str(cols), '-y', str(rows), *argv,
                       ';', 'set', '-g', 'status', 'off', ';', 'set', '-g', 'window-size', 'latest')

    def attach_cmd(self, sid):
        return self._t('attach', '-t', sid)

    def kill_cmd(self, sid):
        return self._t('kill-session', '-t', sid)


class Dtach(CommandPeer):
    name, binary, comms = 'dtach', 'dtach', ('dtach',)
    note = 'keeps no screen; the program repaints'

    def start_cmd(self, sid, argv, cols, rows):
        return ['dtach', '-n', '%s/%s.dtach' % (self.tmp, sid), '-r', 'winch', *argv]

    def attach_cmd(self, sid):
        return ['dtach', '-a', '%s/%s.dtach' % (self.tmp, sid), '-r', 'winch', '-E', '-z']


class Abduco(CommandPeer):
    name, binary, comms = 'abduco', 'abduco', ('abduco',)
    note = 'keeps no screen; the program repaints'

    def start_cmd(self, sid, argv, cols, rows):
        self.env['ABDUCO_SOCKET_DIR'] = self.tmp
        return ['abduco', '-n', sid, *argv]

    def attach_cmd(self, sid):
        return ['abduco', '-a', sid]


class Screen(CommandPeer):
    name, binary, comms = 'screen', 'screen', ('screen',)

    def __init__(self, tmp):
        super().__init__(tmp)
        os.makedirs(tmp + '/S', mode=0o700, exist_ok=True)
        self.env['SCREENDIR'] = tmp + '/S'
        with open(tmp + '/screenrc', 'w') as f:
            f.write('startup_message off\nautodetach on\nvbell off\n')

    def start_cmd(self, sid, argv, cols, rows):
        return ['screen', '-c', self.tmp + '/screenrc', '-U', '-dmS', sid, *argv]

    def attach_cmd(self, sid):
        return ['screen', '-c', self.tmp + '/screenrc', '-U', '-x', sid]

    def kill_cmd(self, sid):
        return ['screen', '-S', sid, '-X', 'quit']


class Mosh(CommandPeer):
    name, binary, comms, reattach, diffs = 'mosh', 'mosh-server', ('mosh-server',), False, True
    note = 'UDP on loopback, no ssh, prediction off; one client per session for life; the program starts at attach'

    def __init__(self, tmp):
        super().__init__(tmp)
        self.conn = {}
        self.port = 60100 + os.getpid() % 400
        self.env['MOSH_PREDICTION_DISPLAY'] = 'never'

    def start_cmd(self, sid, argv, cols, rows):
        self.port += 1
        return ['mosh-server', 'new', '-i', '127.0.0.1', '-p', str(self.port), '-c', '256', '--', *argv]

    def start(self, sid, argv, cols, rows):
        # mosh-server forks and keeps stdout open in some builds: read until the line came
        f = open('%s/%s.mosh' % (self.tmp, sid), 'w+')
        subprocess.run(self.start_cmd(sid, argv, cols, rows), env=self.env, cwd=self.tmp,
                       stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, timeout=20)
        f.seek(0)
        m = re.search(r'MOSH CONNECT (\d+) (\S+)', f.read())
        if not m:
            raise RuntimeError('no MOSH CONNECT')
        self.conn[sid] = m.groups()

    def attach(self, sid, cols, rows):
        port, key = self.conn[sid]
        return PtyViewer(['mosh-client', '127.0.0.1', port], cols, rows, dict(self.env, MOSH_KEY=key))

    def kill(self, sid):
        pass


class Berth(CommandPeer):
    name, comms = 'berth', ('berth-daemon', 'berth-guest', 'berth-holder')
    binary = os.environ.get('BERTH_BIN', os.path.join(os.path.dirname(ME), '..', 'bin', 'berth'))
    note = 'screen, 16 MiB of log and byte offsets kept for each session'

    def __init__(self, tmp):
        super().__init__(tmp)
        for k in list(self.env):
            if k.startswith('BERTH_') or k == 'XDG_RUNTIME_DIR':
                del self.env[k]
        self.env.update(BERTH_STATE_DIR=tmp + '/s', BERTH_RUNTIME_DIR=tmp + '/r', BERTH_MACHINE_DIR=tmp + '/m')
        self._b('up')

    def _b(self, *a):
        r = subprocess.run([self.binary, *a], env=self.env, cwd=self.tmp, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
        if r.returncode:
            raise RuntimeError('berth %s: %s' % (a, r.stdout[-300:]))
        return r.stdout

    def pids(self, servers=True):
        # The guest and the holders get a clean environment, so the run's mark
        # is not in it; the run's directory is on their command lines.
        out = []
        for d in os.listdir('/proc'):
            if not d.isdigit() or int(d) == os.getpid():
                continue
            try:
                cmd = open('/proc/%s/cmdline' % d, 'rb').read()
                comm = open('/proc/%s/comm' % d).read().strip()
            except OSError:
                continue
            if comm in self.comms and (self.tmp + '/').encode() in cmd:
                out.append(int(d))
        return out if servers else out + super().pids(servers=False)

    def start_cmd(self, sid, argv, cols, rows):
        return [self.binary, 'run', '-d', '--name', sid, '--size', '%dx%d' % (cols, rows), '--', *argv]

    def attach_cmd(self, sid):
        return [self.binary, 'attach', sid]

    def kill_cmd(self, sid):
        return [self.binary, 'kill', sid]

    def restart(self, n):
        daemon = json.loads(self._b('status', '--json'))['daemon']['pid']
        os.kill(daemon, signal.SIGKILL)
        t0 = time.monotonic()
        self._b('up')
        while True:
            st = json.loads(self._b('status', '--json'))['sessions']
            if st['running'] == n:
                return time.monotonic() - t0
            if time.monotonic() - t0 > 30:
                raise RuntimeError('only %s came back' % st)


PEERS = {p.name: p for p in (Direct, Tmux, Dtach, Abduco, Screen, Mosh, Berth)}


# ---------------------------------------------------------------- helpers
def pct(xs, p):
    xs = sorted(xs)
    return xs[min(len(xs) - 1, int(len(xs) * p / 100))] if xs else None


def wait_for(v, needle, timeout, done=None):
    """Read until needle shows up (escapes stripped); the time, or None.

    A peer that sends cell differences (mosh) may never spell the needle out:
    with done() true and 1.5 s of silence, the time of the last byte counts.
    """
    end = time.monotonic() + timeout
    tail, total, last = b'', 0, None
    while time.monotonic() < end:
        if not select.select([v], [], [], 0.2)[0]:
            if done and last and time.monotonic() - last > 1.5 and done():
                return last, total
            continue
        d = v.read()
        if not d:
            return None, total
        total += len(d)
        last = time.monotonic()
        tail = (tail + d)[-131072 - 256:]
        if needle in tail or needle in ESC.sub(b'', tail[-8192:]):
            return time.monotonic(), total
    return None, total


def drain(v, quiet):
    while select.select([v], [], [], quiet)[0]:
        if not v.read():
            return


class Peak(threading.Thread):
    def __init__(self, peer):
        super().__init__(daemon=True)
        self.peer, self.top, self.on = peer, 0, True
        self.start()

    def run(self):
        pids = self.peer.pids()
        while self.on:
            n = 0
            for p in pids:
                try:
                    n += int(re.search(r'VmRSS:\s+(\d+)', open('/proc/%d/status' % p).read())[1])
                except (OSError, TypeError):
                    pass
            self.top = max(self.top, n)
            time.sleep(0.1)


# ---------------------------------------------------------------- tests
def test_flood(mk, opt):
    out = {}
    for mode in ('noview', 'view'):
        peer = mk()
        if mode == 'noview' and not peer.detached:
            peer.stop_all()
            continue
        go, rep = peer.tmp + '/go-' + mode, peer.tmp + '/rep-' + mode
        argv = [sys.executable, ME, 'child', 'flood', go, rep, str(opt.flood_mb * 1000000)]
        v = None
        try:
            peer.start('fl', argv, 120, 40)
            v = peer.attach('fl', 120, 40)              # fixes the size, too
            wait_for(v, b'READY', 3)
            drain(v, 0.3)
            shown = None
            if mode == 'noview':
                (v.close if peer.reattach else v.abandon)()
                v = None
                time.sleep(0.5)
            peak = Peak(peer)
            cpu0 = peer.cpu()
            open(go, 'w').close()
            if mode == 'view':
                shown, n = wait_for(v, END, opt.flood_timeout, (lambda: os.path.exists(rep)) if peer.diffs else None)
                out['view_bytes'] = n
                if getattr(v, 'desync', 0):
                    out['view_desyncs'] = v.desync
            end = time.monotonic() + opt.flood_timeout
            while not os.path.exists(rep) and time.monotonic() < end:
                time.sleep(0.02)
            if not os.path.exists(rep):
                out[mode + '_s'] = '>%d' % opt.flood_timeout
                continue
            a, b = map(float, open(rep).read().split())
            out[mode + '_s'] = round(b - a, 2)
            if mode == 'noview' and peer.reattach:
                v = peer.attach('fl', 120, 40)
                shown, _ = wait_for(v, END, 20)
            out[mode + '_shown_s'] = round(shown - a, 2) if shown else None
            peak.on = False
            out[mode + '_cpu_s'] = round(peer.cpu() - cpu0, 2)
            out[mode + '_peak_rss_kb'] = peak.top
        except Exception as e:
            out[mode + '_err'] = repr(e)[:200]
        finally:
            if v:
                v.close()
            peer.stop_all()
    return out


def test_echo(mk, opt):
    peer, v, lat = mk(), None, []
    try:
        peer.start('ec', ['sh', '-c', 'stty raw -echo; echo READY; exec cat'], 120, 40)
        v = peer.attach('ec', 120, 40)
        if wait_for(v, b'READY', 3)[0] is None and not peer.note.startswith('keeps no screen'):
            return {'err': 'no READY'}
        drain(v, 0.5)
        gc.disable()
        stop = time.monotonic() + opt.echo_cap
        miss = 0
        for i in range(opt.rounds):
            ch = b'ABCDEFGHJKLMNPQRSTUVWXYZ'[i % 24:i % 24 + 1]
            buf = b''
            t = time.perf_counter()
            v.write(ch)
            while True:
                if not select.select([v], [], [], 1.0)[0]:
                    miss += 1
                    break
                buf += v.read()
                if ch in ESC.sub(b'', buf):
                    lat.append((time.perf_counter() - t) * 1e6)
                    break
            if time.monotonic() > stop or miss > 20:
                break
        gc.enable()
        return {'p50_us': round(pct(lat, 50)), 'p99_us': round(pct(lat, 99)), 'n': len(lat), 'missed': miss}
    except Exception as e:
        return {'err': repr(e)[:200]}
    finally:
        if v:
            v.close()
        peer.stop_all()


def test_interrupt(mk, opt):
    peer, v, took = mk(), None, []
    try:
        mark = peer.tmp + '/stopped'
        peer.start('in', ['sh', '-c', 'trap : INT; i=0; while :; do yes; i=$((i+1)); echo $i > %s.$i; done' % mark], 120, 40)
        v = peer.attach('in', 120, 40)
        go = threading.Event()

        def read():
            while not go.is_set():
                if select.select([v], [], [], 0.1)[0] and not v.read():
                    return
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        for i in range(1, 11):
            time.sleep(0.5)
            t0 = time.monotonic()
            v.write(b'\x03')
            while not os.path.exists('%s.%d' % (mark, i)):
                if time.monotonic() - t0 > 20:
                    raise RuntimeError('Ctrl-C %d did nothing in 20 s' % i)
                time.sleep(0.0005)
            took.append((time.monotonic() - t0) * 1e3)
        go.set()
        reader.join()
        return {'p50_ms': round(pct(took, 50), 1), 'max_ms': round(max(took), 1)}
    except Exception as e:
        return {'err': repr(e)[:200], 'ms': [round(x, 1) for x in took]}
    finally:
        if v:
            v.close()
        peer.stop_all()


def test_attach(mk, opt):
    argv = [sys.executable, ME, 'child', 'paint', '200', '50']
    first, top, last, size, ok = [], [], [], [], 0
    peer = mk()
    try:
        if peer.reattach:
            peer.start('at', argv, 200, 50)
            v = peer.attach('at', 200, 50)              # fixes the size
            wait_for(v, b'END-MARK', 3)
            drain(v, 0.4)
            v.close()
            time.sleep(0.4)
        for i in range(opt.attaches):
            sid = 'at' if peer.reattach else 'at%d' % i
            if not peer.reattach:
                peer.start(sid, argv, 200, 50)
                if peer.detached:
                    time.sleep(0.7)
            v = peer.attach(sid, 200, 50)
            buf, f, t, l = b'', None, None, None
            end = time.monotonic() + 5
            while time.monotonic() < end:
                if not select.select([v], [], [], 0.4)[0]:
                    if b'END-MARK' in buf or time.monotonic() - v.t0 > 2.5:
                        break
                    continue
                d = v.read()
                now = time.monotonic()
                if not d:
                    break
                if d == b'\0':
                    continue
                f = f or now
                l = now
                buf += d
                if not t and b'TOP-MARK' in ESC.sub(b'', buf):
                    t = now
            if t and b'END-MARK' in ESC.sub(b'', buf):
                ok += 1
                first.append((f - v.t0) * 1e3)
                top.append((t - v.t0) * 1e3)
                last.append((l - v.t0) * 1e3)
                size.append(len(buf))
            v.close()
            time.sleep(0.2)
        if not ok:
            return {'err': 'screen not shown', 'got': len(buf)}
        r = lambda x: round(pct(x, 50), 1)
        return {'first_ms': r(first), 'painted_ms': r(top), 'last_ms': r(last),
                'last_max_ms': round(max(last), 1), 'bytes': pct(size, 50), 'ok': '%d/%d' % (ok, opt.attaches)}
    except Exception as e:
        return {'err': repr(e)[:200]}
    finally:
        peer.stop_all()


def test_rss(mk, opt):
    if mk is None:
        return {}
    peer = mk()
    if not peer.detached:
        return {}
    out = {}
    try:
        for i in range(opt.sessions):
            peer.start('r%d' % i, ['sleep', '3600'], 120, 40)
            if i == 0:
                time.sleep(1.5)
                out['rss1_kb'], out['pss1_kb'] = peer.memory()
        time.sleep(1.5)
        n = opt.sessions
        out['rss%d_kb' % n], out['pss%d_kb' % n] = peer.memory()
        out['procs'] = len(peer.pids())
        out['per_extra_rss_kb'] = round((out['rss%d_kb' % n] - out['rss1_kb']) / (n - 1))
        out['per_extra_pss_kb'] = round((out['pss%d_kb' % n] - out['pss1_kb']) / (n - 1))
    except Exception as e:
        out['err'] = repr(e)[:200]
    finally:
        peer.stop_all()
    return out


def test_restart(mk, opt):
    peer = mk()
    try:
        if not hasattr(peer, 'restart'):
            return {'note': 'its sessions die with the server'}
        for i in range(200):
            peer.start('k%d' % i, ['sleep', '3600'], 80, 24)
        return {'sessions': 200, 'back_s': round(peer.restart(200), 2)}
    except Exception as e:
        return {'err': repr(e)[:200]}
    finally:
        peer.stop_all()


TESTS = {'flood': test_flood, 'echo': test_echo, 'interrupt': test_interrupt, 'attach': test_attach, 'rss': test_rss, 'restart': test_restart}


NOTES = """
What the figures are bound by:

- **Flood.** The holder writes the log and nothing else, and is alone level with dtach; the guest draws beside it (about
  0.4 CPU seconds for 60 MB) and skims where it lags by more than 8 MiB. On two processors that drawing competes with the
  program, the kernel's terminal worker and the holder: single runs scatter between 0.7 and 2 s, dtach's between 0.6 and
  1.7 s. A viewer that cannot take all gets gaps and repaints, so fewer bytes are sent than were written.
- **Echo is behind tmux's.** A key passes the client, the guest, the holder and the program, and its echo the same way
  back: three processes beside the program, where tmux has one (its client hands the terminal itself over). Each
  wake-up of an idle process costs 20 to 40 us on such a machine. That holder and guest are two is what lets either be
  killed or replaced; the daemon is not on the way (decision 7). Taking the terminal over as tmux does would save one
  process in each direction and is not done.
- **Memory** is the proportional set size of daemon, guest and all holders. A holder's own is under 1 MiB; the daemon
  with its store is about 20 MB of the sum, once."""


def report(path):
    """The table of docs/benchmarks.md, from the results of one run."""
    res = json.load(open(path))
    print('# Benchmarks\n')
    print('Written by `make bench`; not edited by hand. One run of all peers on one machine:')
    print('%s, %d processors, Linux %s, %s. Load average %.1f before and %.1f after.' % (
        res['machine'], res['cpus'], res['kernel'], res['date'], res['load'][0][0], res['load'][1][0]))
    print('Compare rows with each other, not with another machine. CPU seconds are those of the server')
    print('processes and the steadiest figures on a busy machine.\n')
    cell = lambda d, *ks: ' / '.join('-' if d.get(k) is None else str(d.get(k)) for k in ks)
    print('| peer | flood 60 MB, no viewer: s (CPU s; peak RSS MB) | with a viewer: s, shown s (CPU s) | echo p50 / p99 us '
          '| Ctrl-C under `yes`: median / worst ms | attach to painted 200x50: painted / last ms | PSS MB: 1 / 50 sessions '
          '| 200 sessions back after kill -9 |')
    print('| --- | --- | --- | --- | --- | --- | --- | --- |')
    for name, r in res.items():
        if not isinstance(r, dict) or 'note' not in r:
            continue
        f, e, c, a, m, k = (r.get(t, {}) for t in ('flood', 'echo', 'interrupt', 'attach', 'rss', 'restart'))
        mb = lambda v: '-' if v is None else '%.1f' % (v / 1000)
        print('| %s | %s (%s; %s) | %s, %s (%s) | %s | %s | %s | %s / %s | %s |' % (
            name, cell(f, 'noview_s'), cell(f, 'noview_cpu_s'), mb(f.get('noview_peak_rss_kb')),
            cell(f, 'view_s'), cell(f, 'view_shown_s'), cell(f, 'view_cpu_s'), cell(e, 'p50_us', 'p99_us'),
            cell(c, 'p50_ms', 'max_ms'), cell(a, 'painted_ms', 'last_ms'), mb(m.get('pss1_kb')), mb(m.get('pss50_kb')),
            '%s s' % k['back_s'] if 'back_s' in k else k.get('note', k.get('err', '-'))))
    print()
    for name, r in res.items():
        if isinstance(r, dict) and r.get('note'):
            print('- %s: %s' % (name, r['note']))
    print(NOTES)


def main():
    ap = argparse.ArgumentParser()
    sub = ap.add_subparsers(dest='cmd', required=True)
    sub.add_parser('list')
    sub.add_parser('report').add_argument('file')
    r = sub.add_parser('run')
    r.add_argument('--peers', default=','.join(PEERS))
    r.add_argument('--tests', default=','.join(TESTS))
    r.add_argument('--json')
    r.add_argument('--flood-mb', type=int, default=60)
    r.add_argument('--flood-timeout', type=int, default=90)
    r.add_argument('--rounds', type=int, default=2000)
    r.add_argument('--echo-cap', type=float, default=60, help='seconds')
    r.add_argument('--attaches', type=int, default=10)
    r.add_argument('--sessions', type=int, default=50)
    c = sub.add_parser('child')
    c.add_argument('args', nargs='+')
    opt = ap.parse_args()
    if opt.cmd == 'child':
        a = opt.args
        return child_flood(a[1], a[2], int(a[3])) if a[0] == 'flood' else child_paint(int(a[1]), int(a[2]))
    if opt.cmd == 'report':
        return report(opt.file)
    if opt.cmd == 'list':
        for p in PEERS.values():
            print(p.name, 'yes' if p.available() else 'no', p.note)
        return
    res, load0 = {}, os.getloadavg()
    res['machine'], res['cpus'], res['kernel'] = os.uname().machine, os.cpu_count(), os.uname().release.split('-')[0]
    res['date'] = time.strftime('%Y-%m-%d')
    for name in opt.peers.split(','):
        cls = PEERS[name]
        if not cls.available():
            print(name, 'not installed', flush=True)
            continue
        res[name] = {'note': cls.note}
        for t in opt.tests.split(','):
            dirs = []

            def mk():
                dirs.append(tempfile.mkdtemp(prefix='sb-', dir=None))
                return cls(dirs[-1])
            res[name][t] = TESTS[t](mk, opt)
            print(name, t, json.dumps(res[name][t]), flush=True)
            if os.environ.get('KEEP'):
                dirs = []
            for d in dirs:
                shutil.rmtree(d, ignore_errors=True)
    res['load'] = (load0, os.getloadavg())
    print('load average before, after:', load0, os.getloadavg())
    if opt.json:
        with open(opt.json, 'w') as f:
            json.dump(res, f, indent=1)


if __name__ == '__main__':
    main()
