"""Client and server ends of the scenario `modes`: python3 peer.py WHAT ADDRESS PORT. Exit code 0: it went as it should."""

import errno
import random
import socket
import struct
import sys
import time

what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
six = ":" in address
family = socket.AF_INET6 if six else socket.AF_INET


def endpoint(kind, options=False):
    end = socket.socket(family, kind)
    end.settimeout(2)
    if options and six:
        # Destination options: PadN of four bytes.
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
    elif options:
        end.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([1, 1, 1, 1]))
    return end


def echo(end, payload, tries):
    """Sends until the whole payload and the server's tag come back."""
    for _ in range(tries):
        try:
            end.send(payload)
            if end.recv(65535)[: len(payload)] == payload:
                return True
        except TimeoutError:
            pass
        except OSError as error:
            # The error about the one before: the way is narrower than thought.
            if error.errno != errno.EMSGSIZE:
                raise
    return False


def echoes(size, options=False, tries=1):
    for number in range(6):
        end = endpoint(socket.SOCK_DGRAM, options)
        end.connect((address, port))
        payload = struct.pack("!I", number) + random.randbytes(size - 4)
        if not echo(end, payload, tries):
            sys.exit(f"datagram {number} of {size} bytes was not answered")


def page(options):
    for number in range(6):
        end = endpoint(socket.SOCK_STREAM, options)
        end.connect((address, port))
        end.sendall(b"GET /who HTTP/1.0\r\n\r\n")
        text = b""
        while part := end.recv(65535):
            text += part
        if b" 200 " not in text:
            sys.exit(f"request {number} got {text[:60]!r}")


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF or 0xFFFF


def fragments(source, target, segment, number):
    """The datagram in pieces of 1000 bytes, each a packet with its IP header."""
    for at in range(0, len(segment), 1000):
        piece = segment[at : at + 1000]
        more = at + 1000 < len(segment)
        if six:
            header = struct.pack("!IHBB", 6 << 28, len(piece) + 8, 44, 64) + source + target
            yield header + struct.pack("!BBHI", 17, 0, at | more, number) + piece
        else:
            flags = at // 8 | (0x2000 if more else 0)
            yield struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(piece), number, flags, 64, 17, 0) + source + target + piece


def overtaken():
    for order in ([2, 1, 0], [1, 0, 2], [2, 0, 1]):
        end = endpoint(socket.SOCK_DGRAM)
        end.connect((address, port))
        raw = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
        own = end.getsockname()
        source, target = (socket.inet_pton(family, text) for text in (own[0], address))
        payload = random.randbytes(2492)
        head = struct.pack("!HHH", own[1], port, 2500)
        pseudo = source + target + struct.pack("!IHH", 2500, 0, 17)
        segment = head + struct.pack("!H", checksum(pseudo + head + bytes(2) + payload)) + payload
        pieces = list(fragments(source, target, segment, random.randrange(1, 65536)))
        for index in order:
            raw.sendto(pieces[index], (address, 0))
        try:
            answer = end.recv(65535)
        except TimeoutError:
            sys.exit(f"fragments in the order {order} were not answered")
        if answer[:-1] != payload:
            sys.exit(f"fragments in the order {order} came back as something else")


def refused():
    end = endpoint(socket.SOCK_DGRAM)
    end.connect((address, port))
    end.send(b"anybody?")
    try:
        end.recv(100)
    except ConnectionRefusedError:
        return
    except TimeoutError:
        sys.exit("no error came")
    sys.exit("an answer came")


def prohibited():
    end = endpoint(socket.SOCK_STREAM)
    try:
        end.connect((address, port))
    except TimeoutError:
        sys.exit("no error came")
    except ConnectionRefusedError:
        sys.exit("a reset came")
    except OSError as error:
        print(error)
        return
    sys.exit("it was connected")


def hang_up():
    """A client that is gone when the answer comes."""
    end = endpoint(socket.SOCK_DGRAM)
    end.connect((address, port))
    end.send(b"hello")


def jilted():
    """The server of such a client: it answers late, and must be told."""
    end = endpoint(socket.SOCK_DGRAM)
    end.settimeout(20)
    end.bind((address, port))
    print("ready", flush=True)
    _, client = end.recvfrom(100)
    end.connect(client)
    end.settimeout(3)
    time.sleep(0.2)
    end.send(b"too late")
    try:
        end.recv(100)
    except ConnectionRefusedError:
        print("refused", flush=True)


{
    "echo": lambda: echoes(100),
    "big-echo": lambda: echoes(4000, tries=3) or overtaken(),
    "narrow-echo": lambda: echoes(1252 if six else 1272, tries=4),
    "echo-with-options": lambda: echoes(100, options=True),
    "page": lambda: page(False),
    "page-with-options": lambda: page(True),
    "refused": refused,
    "prohibited": prohibited,
    "hang-up": hang_up,
    "jilted": jilted,
}[what]()
