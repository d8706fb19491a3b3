-- What the scripts on sorted sets share: reading members and scores.

-- The units in a member's name, "<id>:<units>".
local function units_of(member)
	return tonumber(string.match(member, ':(%d+)$'))
end

-- A score as a number. Servers write round ones as 1.8e+15; a real Lua reads
-- that, miniredis' doesn't, so there the digits are put in their places.
local function score(value)
	local n = tonumber(value)
	if n then
		return n
	end
	local sign, int, frac, exponent = string.match(value, '^(-?)(%d+)%.?(%d*)e%+(%d+)$')
	return tonumber(sign .. int .. frac .. string.rep('0', exponent - #frac))
end

