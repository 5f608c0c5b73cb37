-- Wireshark dissector for ExaNet packets as `exanetctl capture` writes them (link type
-- USER0). Fields, widths and names are those of docs/spec/messages.md.
--
--   tshark -X lua_script:exanet.lua -r links.pcapng
--   Wireshark: copy it into Help > About > Folders > Personal Lua Plugins

local exanet = Proto("exanet", "ExaNet")

local kinds = { "Data", "Completion words", "Acknowledgement", "Message", "Link number" }
local codes = {
	[0] = "positive", "AXI slave error (page fault)", "AXI decode error", "no context available",
	"packet corrupted", "protection-domain mismatch", "reserved", "destination buffer full",
}
local opcodes = { [0] = "acknowledgement", "read request", "RAPF", "doorbell" }
local DEC, HEX = base.DEC, base.HEX

local all = {} -- all fields of the protocol

-- bits returns a field for the bits [high:low] of a u64. (Wireshark 4.0 does not support
-- masks of more than 32 bits.)
local function bits(name, text, high, low, show, values)
	local f = ProtoField.uint64("exanet." .. name, text, show or DEC, values)
	all[#all + 1] = f
	return { field = f, low = low, high = high }
end

local function whole(name, text)
	return bits(name, text, 63, 0, HEX)
end

local function other(f)
	all[#all + 1] = f
	return f
end

-- The header (messages.md 5): the fields of each of its seven words.
local header = {
	{
		bits("kind", "Kind", 3, 0, DEC, kinds), bits("last", "Last block of the transfer", 4, 4),
		bits("words", "Completion words belong to the block", 5, 5), bits("refused", "Answers a message", 6, 6),
		bits("read", "Serves a read request", 7, 7), bits("block", "Block number", 42, 24),
		bits("length", "Block length", 57, 43),
	},
	{
		bits("srcnode", "Source node", 21, 0), bits("interface", "Source interface", 27, 22),
		bits("srcpdid", "Source PDID", 43, 28), bits("id", "Transaction", 57, 44),
		bits("code", "Code", 60, 58, DEC, codes),
	},
	{
		bits("dstnode", "Destination node", 21, 0), bits("mailbox", "Destination mailbox", 27, 22),
		bits("dstpdid", "Destination PDID", 43, 28), bits("seq", "Sequence number", 57, 44),
	},
	{ bits("va", "Destination address", 47, 0, HEX), bits("offset", "Offset in the block", 61, 48) },
	{
		bits("remaining", "Remaining bytes of the transfer", 31, 0),
		bits("first", "First sequence number", 45, 32), bits("payload_length", "Payload length", 54, 46),
	},
	{ bits("dstgen", "Destination generation", 31, 0, HEX), bits("srcgen", "Source generation", 63, 32, HEX) },
	{ bits("epoch", "Epoch", 31, 0, HEX), bits("link", "Link number", 63, 32, HEX) },
}
local crc = other(ProtoField.uint32("exanet.crc", "Header CRC-32C", HEX))
local payload = other(ProtoField.bytes("exanet.payload", "Payload"))
local payload_crc = other(ProtoField.uint32("exanet.payload_crc", "Payload CRC-32C", HEX))
local completion = { whole("words.first", "First"), whole("words.last", "Last") }

-- Messages (messages.md 2 and 4): the fields of each of their words.
local opcode = bits("msg.opcode", "Opcode", 1, 0, DEC, opcodes)
local pdid = bits("msg.pdid", "Wired PDID", 17, 2)
local messages = {
	[0] = { {
		opcode, bits("ack.id", "Transaction or tag", 15, 2), bits("ack.code", "Code", 18, 16, DEC, codes),
		bits("ack.seq", "Sequence number", 45, 32),
	} },
	[1] = {
		{ opcode, pdid, bits("req.tag", "Tag", 31, 18), bits("req.size", "Size", 63, 32) },
		{ whole("req.src", "Source address") }, { whole("req.dst", "Destination address") },
		{ whole("req.notify", "Notification address") },
		{ whole("req.first", "First completion word") }, { whole("req.last", "Last completion word") },
		{ bits("req.target", "Target PDID", 15, 0), bits("req.generation", "Target generation", 63, 32, HEX) },
	},
	[2] = { {
		opcode, pdid, bits("rapf.id", "Transaction", 31, 18), bits("rapf.seq_low", "Sequence number [11:0]", 43, 32),
		bits("rapf.claimed", "PDID as written", 59, 44), bits("rapf.seq_high", "Sequence number [13:12]", 61, 60),
		bits("rapf.fail", "End the transfer", 62, 62), bits("rapf.memory", "With status 11", 63, 63),
	} },
	[3] = { { opcode, pdid, bits("doorbell.channel", "Channel", 27, 18) } },
}
local rapf_seq = other(ProtoField.uint16("exanet.rapf.seq", "Sequence number"))
-- Requests to GSAS units and their answers (gsas.md 3), of which the last words may be missing.
local protection, tag = bits("gsas.protection", "Protection id", 47, 24, HEX), bits("gsas.tag", "Tag", 55, 48, HEX)
local request = {
	{ bits("gsas.thread", "Thread and node", 23, 0, HEX), protection, tag, bits("gsas.op", "Op code", 63, 56, HEX) },
	{ whole("gsas.address", "Address") },
}
local answer = { { bits("gsas.number", "Number", 15, 0), protection, tag, bits("gsas.status", "Status", 63, 56) } }
for i = 1, 5 do
	request[2 + i] = { whole("gsas.arg" .. i, "Argument " .. i) }
end
for i = 1, 4 do
	answer[1 + i] = { whole("gsas.value" .. i, "Value " .. i) }
end
local word = whole("msg.word", "Word")
exanet.fields = all

local malformed = ProtoExpert.new("exanet.malformed", "Length differs from the header", expert.group.MALFORMED, expert.severity.ERROR)
local bad_crc = ProtoExpert.new("exanet.bad_crc", "Wrong CRC", expert.group.CHECKSUM, expert.severity.ERROR)
exanet.experts = { malformed, bad_crc }

-- CRC-32C (Castagnoli, reflected), one byte at a time.
local crc_table = {}
for i = 0, 255 do
	local c = i
	for _ = 1, 8 do
		c = bit32.bxor(bit32.rshift(c, 1), bit32.band(c, 1) * 0x82f63b78)
	end
	crc_table[i] = c
end

local function crc32c(range)
	local c = 0xffffffff
	local b = range:bytes()
	for i = 0, b:len() - 1 do
		c = bit32.bxor(bit32.rshift(c, 8), crc_table[bit32.band(bit32.bxor(c, b:get_index(i)), 0xff)])
	end
	return bit32.bxor(c, 0xffffffff)
end

local function checked(tree, field, tvb, at, covered)
	local item = tree:add_le(field, tvb(at, 4))
	if crc32c(covered) ~= tvb(at, 4):le_uint() then
		item:add_proto_expert_info(bad_crc)
	end
end

-- value returns the value of a field of the u64 at a byte offset.
local function value(tvb, at, f)
	local v = tvb(at, 8):le_uint64():rshift(f.low)
	return f.high - f.low == 63 and v or v:band(UInt64(1):lshift(f.high - f.low + 1) - 1)
end

-- add adds the fields of words that begin at a byte offset, each with its bytes.
local function add(tree, tvb, at, words)
	for i, fields in ipairs(words) do
		local word = at + 8 * (i - 1)
		for _, f in ipairs(fields) do
			local first = math.floor(f.low / 8)
			tree:add(f.field, tvb(word + first, math.floor(f.high / 8) - first + 1), value(tvb, word, f))
		end
	end
end

-- message returns the fields and the name of a message by its mailbox, opcode and length.
local function message(mailbox, words, first, srcpdid)
	local op = bit32.band(first, 3)
	if mailbox == 0 and op == 0 and words == 1 or mailbox == 2 and op == 1 and words == 7
		or mailbox == 1 and (op == 2 or op == 3) and words == 1
		or mailbox >= 16 and mailbox < 32 and srcpdid == 0 and op == 0 and words == 1 then
		return messages[op], opcodes[op]
	elseif mailbox == 4 and words <= #request then
		return { table.unpack(request, 1, words) }, "GSAS request"
	elseif mailbox >= 32 and srcpdid == 0 and words <= #answer then
		return { table.unpack(answer, 1, words) }, "GSAS answer"
	end
	return nil, "message"
end

function exanet.dissector(tvb, pinfo, root)
	pinfo.cols.protocol = "ExaNet"
	local tree = root:add(exanet, tvb())
	if tvb:len() < 56 then
		tree:add_proto_expert_info(malformed)
		return
	end
	add(tree, tvb, 0, header)
	local function field(word, index)
		return value(tvb, 8 * (word - 1), header[word][index]):tonumber()
	end
	local kind, n = field(1, 1), field(5, 3)
	local mailbox, srcpdid = field(3, 2), field(2, 3)
	pinfo.cols.src = string.format("%d/%d", field(2, 1), srcpdid)
	pinfo.cols.dst = string.format("%d/%d", field(3, 1), field(3, 3))
	local info = kinds[kind] or string.format("Kind %d", kind)
	if kind == 1 then
		info = string.format("%s, transaction %d, sequence %d, block %d, offset %d, %d bytes", info, field(2, 4),
			field(3, 4), field(1, 6), field(4, 2), n)
	elseif kind == 3 then
		info = string.format("%s, transaction %d, sequence %d: %s", info, field(2, 4), field(3, 4), codes[field(2, 5)])
	end

	local reported = tvb:reported_len()
	if reported ~= 60 + (n > 0 and n + 4 or 0) then
		tree:add_proto_expert_info(malformed)
	end
	if tvb:len() >= 60 then
		checked(tree, crc, tvb, 56, tvb(0, 56))
	end
	if n > 0 and tvb:len() >= 60 + n then
		if kind == 2 and n == 16 then
			add(tree, tvb, 60, { { completion[1] }, { completion[2] } })
		elseif kind == 4 and n % 8 == 0 then
			local words = n / 8
			local fields, name = message(mailbox, words, tvb(60, 4):le_uint(), srcpdid)
			info = string.format("%s to mailbox %d", name, mailbox)
			if fields then
				add(tree, tvb, 60, fields)
			else
				for i = 0, words - 1 do
					add(tree, tvb, 60 + 8 * i, { { word } })
				end
			end
			if fields == messages[2] then
				local high = tvb(64, 4):le_uint()
				tree:add(rapf_seq, tvb(64, 4), bit32.band(high, 0xfff) + bit32.band(bit32.rshift(high, 28), 3) * 4096):set_generated()
			end
		else
			tree:add(payload, tvb(60, n))
		end
		if tvb:len() >= 64 + n then
			checked(tree, payload_crc, tvb, 60 + n, tvb(60, n))
		end
	end
	pinfo.cols.info = info
end

-- Wireshark 4.2 and later only has wtap_encaps.
local encaps = wtap_encaps or wtap
DissectorTable.get("wtap_encap"):add(encaps.USER0, exanet)
