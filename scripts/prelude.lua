-- The part every script begins with: the clock and the text of numbers.
--
-- KEYS     the keys of all limits of all items, in the order of ARGV
-- ARGV[1]  the caller's clock in microseconds, or 0: ask the server (TIME)
-- ARGV[2]  an id no other run has; the sliding log names its entries by it
-- ARGV[3…] the items, see driver.lua
--
-- All numbers are integers below 2^53. They become text only through text():
-- joining or tostring() keeps 14 digits on a real Redis.

local now = tonumber(ARGV[1])
if now == 0 then
	local time = redis.pcall('TIME')
	if time.err then
		return redis.error_reply('NOTIME the server refuses TIME inside scripts: ' .. time.err)
	end
	now = time[1] * 1000000 + time[2]
end

local format, floor, max, min = string.format, math.floor, math.max, math.min
local call = redis.call

local function text(x)
	return format('%d', x)
end

-- The lifetime, for PX and PEXPIRE, of what matters for so many more microseconds.
local function lifetime(micros)
	return text(max(1, math.ceil(micros / 1000)))
end
